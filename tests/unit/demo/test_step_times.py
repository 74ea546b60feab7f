"""The demo shows where the seconds of each step went, and fails if that is unknown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import written_run

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "demo"))

from headway_analysis.report.timeline import UNKNOWN, StepTime
from headway_demo import step_times


def time(seconds: float, unknown: float) -> StepTime:
    return StepTime(7, seconds, {"tools": seconds - unknown, UNKNOWN: unknown})


def test_every_step_of_a_copied_run_is_listed(tmp_path: Path) -> None:
    made = written_run.write(tmp_path, steps=4, remedy_at=3)
    times = step_times.read(made.folder)
    assert [each.step for each in times] == [1, 2, 4], "a remedy trains nothing"
    lines = step_times.verified(times).splitlines()
    assert len(lines) == 3
    assert lines[0] == (
        "  step   1    12.0 s  100.0% accounted for: "
        "sampling by the model 4.0 s, learner: policy update 2.5 s, tools 1.5 s"
    )


def test_a_long_step_must_be_accounted_for() -> None:
    with pytest.raises(
        step_times.TimeUnaccountedError, match=r"of the 20\.0 s of step 7, 98\.9% are accounted"
    ):
        step_times.verified([time(20, 0.22)])
    assert "99.1% accounted for" in step_times.verified([time(20, 0.18)])
    assert "50.0% accounted for" in step_times.verified([time(10, 5)]), "it is short"


def test_a_run_without_times_is_not_a_success() -> None:
    with pytest.raises(step_times.TimeUnaccountedError, match="no report"):
        step_times.verified([])
