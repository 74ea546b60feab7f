"""docs/dependencies.md has a row for each package that pyproject.toml names, and for each guest."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "python"))

from env import GUESTS
from extras import ROOT, named

PAGE = (ROOT / "docs" / "dependencies.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def rows(heading: str) -> list[str]:
    """First cells of the first table after a heading."""
    tables = re.split(r"\n\n", PAGE[PAGE.index(f"{heading}\n") :])
    (table, *_) = [text for text in tables if text.startswith("| ")]
    return [line.split("|")[1].strip() for line in table.splitlines()[2:]]


def packages(heading: str) -> list[str]:
    return [name for cell in rows(heading) for name in re.findall(r"`([^`]+)`", cell)]


def declared(*extras: str) -> set[str]:
    return {named(each) for extra in extras for each in PROJECT["optional-dependencies"][extra]}


def test_every_package_of_a_process_has_a_row_and_a_reason() -> None:
    extras = [extra for extra in PROJECT["optional-dependencies"] if extra != "dev"]
    expected = declared(*extras) | {named(each) for each in PROJECT["dependencies"]}
    assert sorted(packages("# Dependencies")) == sorted(expected)


def test_development_dependencies_have_their_own_rows() -> None:
    listed = packages("## For development only")
    assert sorted(listed) == sorted(declared("dev") - set(packages("# Dependencies")))


def test_every_guest_has_a_row() -> None:
    assert sorted(cell.split()[0] for cell in rows("## Guests")) == sorted(GUESTS)
