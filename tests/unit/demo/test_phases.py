"""The phases of the wall clock add up, and use what is known of each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "demo"))

from headway_demo import phases
from headway_demo.console import Timings
from headway_demo.settings import ROOT, Settings

JOB = "the job"
STEP = {"timing_s/training": 3.0, "timing_s/publish_weights": 0.5, "timing_s/policy_update": 2.0}


def timed(job: float, **steps: float) -> dict[str, float]:
    """A job after steps of set-up, with one more step afterwards."""
    return {**steps, JOB: job, "copy": 5.0}


def episode(start: float, end: float) -> dict[str, Any]:
    return {"started_at": start, "finished_at": end}


def group(*episodes: dict[str, Any], discarded: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"episodes": list(episodes), "discarded": list(discarded)}


def test_phases_add_up_to_the_wall_clock() -> None:
    timings = timed(100.0, Python=30.0, cluster=10.0)
    found = phases.split(timings, JOB, 20.0, [{}, STEP, STEP], {1: 1.0, 2: 2.0}, {0: 10.0, 2: 12.0})
    assert (found.set_up, found.start) == ({"Python": 30.0, "cluster": 10.0}, 20.0)
    assert found.afterwards == {"copy": 5.0}
    assert found.training == pytest.approx(5.0)
    assert found.weight_sync == pytest.approx(4.0)
    assert found.evaluation == pytest.approx(22.0)
    assert found.sampling == pytest.approx(49.0)
    assert found.total == pytest.approx(145.0)


def test_without_tracking_publishing_alone_is_weight_sync() -> None:
    assert phases.split(timed(100.0), JOB, 20.0, [STEP], {}, {}).weight_sync == pytest.approx(0.5)


def test_overlapping_times_make_no_phase_negative() -> None:
    assert phases.split(timed(10.0), JOB, 8.0, [STEP], {1: 5.0}, {}).sampling == 0.0


def test_a_validation_lasts_from_its_first_try_to_its_last() -> None:
    groups = [group(episode(12.0, 15.0), discarded=(episode(10.0, 11.0),)), group(episode(13.0, 17.5))]
    assert phases.durations({5: groups}) == {5: 7.5}


def test_the_start_ends_with_the_first_episode() -> None:
    job = {"metadata": {"creationTimestamp": "1970-01-01T00:00:10Z"}}
    assert phases.started_after(job, [group(episode(25.0, 30.0), episode(24.0, 26.0))]) == 14.0


def test_the_preflight_lasts_from_first_episode_to_verdict() -> None:
    condition = {"type": "PreflightPassed", "status": "True", "lastTransitionTime": "1970-01-01T00:01:00Z"}
    job = {"status": {"conditions": [{"type": "Ready"}, condition]}}
    groups = [group(episode(25.0, 30.0), discarded=(episode(24.5, 26.0),)), group(episode(31.0, 40.0))]
    assert phases.preflight_took(job, groups) == 35.5
    assert phases.preflight_took(job, []) == 0.0, "it was read back, or left out"


def test_every_phase_is_printed() -> None:
    timings = timed(100.0, Python=30.0, cluster=10.0)
    found = phases.split(timings, JOB, 20.0, [STEP], {1: 1.0}, {0: 10.0}, 12.0)
    assert (found.start, found.preflight, found.total) == (8.0, 12.0, 145.0)
    lines = {what.split(" (")[0]: seconds for seconds, what in found.lines()}
    assert lines["in all"] == 145.0
    assert (lines["set-up, consisting of:"], lines["  Python"], lines["  cluster"]) == (60.0, 30.0, 10.0)
    assert lines["  the preflight: baseline episodes, scripts, verdict"] == 12.0
    assert {"sampling", "training", "weight sync", "evaluation", "copy"} <= lines.keys()


def test_the_clock_runs_from_the_command_that_made_the_python() -> None:
    assert Settings.from_environ({"DEMO_BEGUN": "1700000000"}).begun == 1_700_000_000
    assert Settings.from_environ({}).begun is None
    recipe = (ROOT / "Makefile").read_text()
    assert "demo: export DEMO_BEGUN := $(shell date +%s)" in recipe
    timings = Timings()
    timings.took("Python environment", 120.0)
    with timings.step("cluster"):
        pass
    assert list(timings.seconds) == ["Python environment", "cluster"]
    assert timings.seconds["Python environment"] == 120.0
