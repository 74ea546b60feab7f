"""`headway timeline`: which steps it shows, for batches of any size, and which it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import written_run
from click.testing import Result
from typer.testing import CliRunner
from written_run import Made

from headway_analysis.report.page import choice
from headway_cli.app import app

STEPS = 20


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return written_run.write(tmp_path_factory.mktemp("run"), steps=STEPS)


def run(made: Made, steps: list[int]) -> Result:
    asked = [word for step in steps for word in ("--step", str(step))]
    return CliRunner().invoke(app, ["timeline", str(made.folder), *asked, "--output", "json"])


def shown(done: Result) -> list[int]:
    assert done.exit_code == 0, done.stderr
    return [json.loads(line)["step"] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("steps", [[*range(2, 9)], [*range(2, 10)], [7, 3], [5, 5]])
def test_only_the_requested_steps_are_shown(made: Made, steps: list[int]) -> None:
    assert shown(run(made, steps)) == sorted({*steps})


def test_more_than_eight_steps_are_refused(made: Made) -> None:
    done = run(made, [*range(2, 11)])
    assert done.exit_code == 2
    assert done.stderr == "headway: --step: 9 steps are named; name at most 8\n"


@pytest.mark.parametrize("step", [0, STEPS + 1])
def test_a_step_that_trained_no_batch_is_named(made: Made, step: int) -> None:
    done = run(made, [3, step])
    assert done.exit_code == 2
    assert done.stderr == f"headway: --step: the run has no step {step} that trained a batch\n"


@pytest.mark.parametrize("asked", [[], [2]])
def test_a_large_batch_has_a_timeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[int]
) -> None:
    made = written_run.write(tmp_path, steps=3, groups=3, every=3)
    monkeypatch.setattr(choice, "MAX_GROUPS", 2)
    assert shown(run(made, asked)) == (asked or [1, 2, 3])
