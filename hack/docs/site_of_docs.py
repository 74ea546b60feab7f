#!/usr/bin/env python3
"""Build the documentation as a site: build/site, from docs/ and README.md.

    site_of_docs.py [--repository ADDRESS]

The pages are written for readers of the repository, so some links lead to files outside docs/. The site does
not contain these files. Such a link leads to the repository's web view at ADDRESS. Without ADDRESS, the link
becomes the file's path as text. Zensical checks every other link and anchor. A broken one is an error.
"""

from __future__ import annotations

import argparse
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCE: Final = ROOT / "build" / "docs"
"""The folder docs_dir of `zensical.toml`: the pages with their links rewritten."""
FRONT: Final = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages outside docs/ that are also in the site -> their names there."""
LINK: Final = re.compile(r"(!?)\[((?:`[^`\n]*`|[^\[\]`\n])*)\]\(([^)\s]+)\)|`[^`\n]*`")
ITEM: Final = re.compile(r"(?:[-*]|\d+\.) ")
FENCE: Final = re.compile(r"^(`{3,}|~{3,}).*?^\1\s*$", re.MULTILINE | re.DOTALL)


def pages(root: Path) -> dict[str, str]:
    """All files of the site: path in the repository -> path in the site."""
    files = sorted(file for file in (root / "docs").rglob("*") if file.is_file())
    found = {file.relative_to(root).as_posix(): file.relative_to(root / "docs").as_posix() for file in files}
    return found | {source: name for source, name in FRONT.items() if (root / source).is_file()}


def rewritten(text: str, page: str, known: Mapping[str, str], repository: str | None) -> str:
    """The text of a page with its links changed for the site.

    Args:
        page: path of the page in the repository.
        known: the `pages` of the repository.
        repository: address of the repository's web view; None if there is none.
    """
    home = posixpath.dirname(known[page])

    def of(match: re.Match[str]) -> str:
        mark, words, target = match[1], match[2], match[3]
        if target is None or target.startswith("#") or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", target):
            return match[0]
        path, sign, section = target.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if file in known:
            return f"{mark}[{words}]({posixpath.relpath(known[file], home or '.')}{sign}{section})"
        if repository:
            return f"{mark}[{words}]({repository.rstrip('/')}/{file}{sign}{section})"
        return words if words.strip("`").rstrip("/") == file else f"{words} (`{file}`)"

    return outside_fences(text, lambda part: LINK.sub(of, part))


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """A page with `change` applied to all its text outside code blocks."""
    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def plain(part: str) -> str:
    """Change lists as the site's parser requires: an empty line before a list, and continuations indented by
    4."""
    lines: list[str] = []
    for line in part.split("\n"):
        before = lines[-1] if lines else ""
        if ITEM.match(line) and before and not before.startswith((" ", "#")) and not ITEM.match(before):
            lines.append("")
        lines.append(f" {line}" if line.startswith("   ") else line)
    return "\n".join(lines)


def stage(root: Path, target: Path, repository: str | None) -> int:
    """Write the site's sources, and return the number of pages."""
    shutil.rmtree(target, ignore_errors=True)
    known = pages(root)
    for source, name in known.items():
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.endswith(".md"):
            text = rewritten((root / source).read_text(), source, known, repository)
            copy.write_text(outside_fences(text, plain))
        else:
            shutil.copyfile(root / source, copy)
    return sum(name.endswith(".md") for name in known.values())


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repository", help="such as https://example.com/headway/blob/main")
    options = parser.parse_args(arguments)
    count = stage(ROOT, SOURCE, options.repository or None)
    shutil.rmtree(ROOT / "build" / "site", ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean"], cwd=ROOT, check=False
    )
    if done.returncode == 0:
        print(f"[docs] {count} pages: build/site/index.html", file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
