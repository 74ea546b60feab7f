"""The threat model names the test of each promise. Each test exists, and no name stands for two tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "security.md"
NAMED = sorted(set(re.findall(r"(?:tests/[a-z0-9_/]+/)?test_[a-z0-9_]+\.py", PAGE.read_text())))


@pytest.mark.parametrize("name", NAMED)
def test_a_test_that_the_page_names_exists(name: str) -> None:
    found = [ROOT / name] if "/" in name else [*(ROOT / "tests").rglob(name)]
    assert [path for path in found if path.is_file()], "there is no such test"
    assert len(found) == 1 or name in TWICE, f"name its folder: {[*map(str, found)]}"
    assert any(re.search(r"def test_", path.read_text()) for path in found)


TWICE = {"test_evil_answers.py"}
"""Coordinator, learner and rollout servers each have a test of their clients with this name."""


def promises() -> list[str]:
    """Rows of the tables whose last column names what enforces the promise."""
    rows, inside = [], False
    for line in PAGE.read_text().splitlines():
        if line.startswith("|") and re.search(r"\| (held|shown) by \|$", line):
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("|---"):
            rows.append(line)
    return rows


@pytest.mark.parametrize("row", promises())
def test_a_promise_names_what_enforces_it(row: str) -> None:
    held = row.rstrip("|").rpartition("|")[2]
    assert re.search(r"test_[a-z0-9_]+\.py|\]\(#|the same", held), "a promise without a test is none"


TRIES = re.findall(r"^\| (\d+)\. .*\| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
ON_CLUSTER = ("tests/e2e", "tests/integration/operator", "tests/integration/sandbox/test_broker.py")


def test_there_are_15_tries() -> None:
    assert [int(number) for number, _ in TRIES] == [*range(1, 16)]


@pytest.mark.parametrize(("number", "shown"), TRIES)
def test_a_try_is_made_on_a_cluster_by_make_test_hostile(number: str, shown: str) -> None:
    names = re.findall(r"`([a-z_]+\.py)::(test_[a-z0-9_]+)`", shown)
    assert names, f"try {number} names no test"
    for file, test in names:
        (path,) = (ROOT / "tests").rglob(file)
        assert any(path.is_relative_to(ROOT / place) for place in ON_CLUSTER), f"{file} uses no cluster"
        source = path.read_text()
        before = re.search(rf"((?:@.*\n)*)(?:async )?def {test}\(", source)
        assert before, f"{file} has no {test}"
        whole_file = re.search(r"^pytestmark = \[(?:.|\n)*?pytest\.mark\.hostile", source, re.MULTILINE)
        assert whole_file or "pytest.mark.hostile" in before[1], f"make test-hostile leaves {test} out"


def test_the_page_makes_promises() -> None:
    assert len(promises()) > 25
    assert len(NAMED) > 25
