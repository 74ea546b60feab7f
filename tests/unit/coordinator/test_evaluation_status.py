"""What an evaluation's coordinator says before it has measured anything."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from an_evaluation import spec

from headway_analysis.comparison import Comparison
from headway_analysis.gate import Judgment, Verdict
from headway_api.config import EvalConfig
from headway_api.status import RLEvalJobStatus
from headway_api.store import FileStore
from headway_coordinator.evaluation import view
from headway_coordinator.evaluation.job import EvalCoordinator

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def coordinator(folder: Path, told: RLEvalJobStatus | None = None) -> EvalCoordinator:
    gate = {"candidate": "tuned", "minimum": "0.5"}
    job = EvalConfig(name="job", namespace="ns", uid="uid", spec=spec(gate=gate), candidates=())
    return EvalCoordinator(job, "token", FileStore(), folder, lambda status: None, told=told)


def test_a_condition_that_stays_keeps_its_time(tmp_path: Path) -> None:
    """Else every write would differ, and the API server would be written to for ever."""
    said = coordinator(tmp_path).status().conditions
    assert [each.type for each in said] == ["GatePassed"]
    earlier = [each.model_copy(update={"last_transition_time": LONG_AGO}) for each in said]
    one = coordinator(tmp_path, RLEvalJobStatus(conditions=earlier))
    assert one.status().conditions == earlier
    assert one.status() == one.status()


def test_what_a_predecessor_said_stands_until_there_is_more(tmp_path: Path) -> None:
    told = RLEvalJobStatus.model_validate(
        {
            "progress": {"groups": 3, "serverSets": [1]},
            "results": [{"name": "tuned", "state": "Running", "rows": 3}],
            "headline": {"candidate": "tuned", "score": "0.50 ± 0.10"},
        }
    )
    found = coordinator(tmp_path, told).status()
    assert (found.progress, found.results, found.headline) == (told.progress, told.results, told.headline)


@pytest.mark.parametrize("verdict", Verdict)
def test_the_status_has_the_gates_verdict_in_its_own_word(verdict: Verdict) -> None:
    found = Comparison("base", {}, gate=Judgment(verdict, "0.3", ()))
    told = view.gate(found, finished=True)
    assert told is not None
    assert (told.result, told.message) == (verdict.value, "0.3")
    running = view.gate(found, finished=False)
    assert running is not None
    assert running.result == "Pending"
