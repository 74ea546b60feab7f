"""The workflow on the forge runs the tests that `make test` leaves out to stay short."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
MARKED = ("test-integration", "test-e2e")
"""Targets that leave out tests marked `ci` by default."""


def commands() -> list[list[str]]:
    """What the steps of every job run: the words of each line."""
    workflow: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yaml").read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    lines = [line for step in steps for line in step.get("run", "").splitlines()]
    return [shlex.split(line) for line in lines]


@pytest.mark.parametrize("target", MARKED)
def test_the_workflow_runs_tests_marked_ci(target: str) -> None:
    typed = [words for words in commands() if "make" in words and target in words]
    assert typed
    assert all("LONG=ci" in words for words in typed)


@pytest.mark.parametrize("target", MARKED)
@pytest.mark.parametrize(("long", "left_out"), [("", True), ("ci", False)], ids=["short", "ci"])
def test_long_selects_tests_marked_ci(target: str, long: str, left_out: bool) -> None:
    command = ["make", "-n", target, f"LONG={long}"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    assert ("not ci" in shown) == left_out
    assert "not chaos" in shown
