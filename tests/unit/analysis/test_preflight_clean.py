"""Tasks of several kinds without a fault: with ten seeds, no check raises an alarm."""

from __future__ import annotations

from dataclasses import replace

import pytest
from clean_tasks import TASKS
from made_up_baselines import play_all

from headway_analysis.preflight.evidence import Probe
from headway_analysis.preflight.run import findings, scripts_of

UNREACHED = Probe("metadata address", "169.254.169.254", reached=False, seconds_after_start=0.1)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", TASKS)
def test_a_clean_task_raises_no_alarm(name: str, seed: int) -> None:
    task = TASKS[name]
    baseline = replace(task.baseline(seed), probes=[UNREACHED])
    found = findings(baseline, play_all(lambda: task.make({}), scripts_of(baseline)))
    assert {each.check: each.observed for each in found if each.verdict in ("Fail", "Warn")} == {}
    known = {each.check for each in found if each.verdict == "Pass"}
    assert {"deterministic", "isolated", "foothold", "scorer-agrees", "constant-guess"} <= known
