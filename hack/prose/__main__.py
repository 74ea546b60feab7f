"""Checks that pages and sources are in plain words: `python hack/prose [FILE ...]`, from any folder.

It reads docstrings, comments, messages and names of Python sources, and comments of other files. Without
arguments it checks all pages and sources, and allows the faults that `hack/prose/allowed.txt` lists. With
FILEs it prints all of their faults. It exits with 1 if it prints anything. Standard library only.
"""

from __future__ import annotations

import sys
from pathlib import Path

from headway_prose.comments import has_comments
from headway_prose.faults import (
    Fault,
    allowed,
    faults,
    faults_of_comments,
    faults_of_names,
    faults_of_results,
    faults_of_source,
    verdicts,
)
from headway_prose.pages import RESULTS, has_messages, other_sources, pages, results, sources

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = ROOT / "hack" / "prose" / "allowed.txt"


def judged(name: str, text: str) -> list[Fault]:
    """Faults of a file with this path from the repository's root, and this text."""
    if name.endswith(".py"):
        return [*faults_of_source(text, messages=has_messages(name)), *faults_of_names(name, text)]
    if has_comments(name):
        return [*faults_of_comments(name, text)]
    return [*(faults_of_results(text) if name.startswith(RESULTS) else faults(text))]


def main(named: list[str]) -> int:
    if named:
        paths = {name: Path(name).resolve() for name in named}
        found = {
            name: judged(_from_root(path), path.read_text(encoding="utf-8")) for name, path in paths.items()
        }
        lines = [*verdicts(found, {})]
    else:
        files = (*pages(ROOT), *results(ROOT), *sources(ROOT), *other_sources(ROOT))
        found = {name: judged(name, text) for name, text in files}
        lines = [*verdicts(found, allowed(ALLOWED.read_text(encoding="utf-8")))]
    for line in lines:
        print(line)
    return 1 if lines else 0


def _from_root(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
