"""`python -m headway_dashboards FOLDER`: write the dashboards. With `--check`, only list files that
differ."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from headway_dashboards import fleet, job, sandboxes, servers
from headway_dashboards.board import Board

MADE_BY = "make dashboards"


def boards() -> list[Board]:
    """All dashboards."""
    return [fleet.made(), job.made(), servers.made(), sandboxes.made()]


def differing(folder: Path) -> list[str]:
    """Names of files that differ from the generated ones, are missing, or belong to no dashboard."""
    made = {f"{board.name}.json": board.text() for board in boards()}
    there = {path.name: path.read_text() for path in folder.glob("*.json")}
    return sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))


def write(folder: Path) -> None:
    """Write every dashboard to the folder, and delete other JSON files in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for board in boards():
        (folder / f"{board.name}.json").write_text(board.text())
    for path in folder.glob("*.json"):
        if path.stem not in {board.name for board in boards()}:
            path.unlink()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="headway_dashboards", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; fail if a file differs from what would be generated",
    )
    options = parser.parse_args(arguments)
    if not options.check:
        write(options.folder)
        return 0
    found = differing(options.folder)
    if found:
        print(f"{options.folder}: {', '.join(found)} differ from the code; run: {MADE_BY}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
