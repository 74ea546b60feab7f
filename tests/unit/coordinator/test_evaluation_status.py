"""What an evaluation's coordinator reports, most of it before it has measured anything."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from unittest.mock import Mock

import finished_evaluation as job
import numpy as np
import pytest
from evaluation_rig import spec
from role_keys import KEYS
from simulated import layout

from headway_analysis.comparison import Comparison
from headway_analysis.gate import Judgment, Verdict
from headway_analysis.measures.tries import Try
from headway_analysis.report.document import NOTES
from headway_analysis.statistics.estimates import Why, estimate
from headway_api.conditions import ConditionType, Reason, condition
from headway_api.config import EvalConfig
from headway_api.prices import DEFAULT
from headway_api.records import EpisodeRecord, Outcome
from headway_api.status import GateResult, RLEvalJobStatus
from headway_api.store import FileStore
from headway_coordinator import projections as job_projections
from headway_coordinator.evaluation import projections
from headway_coordinator.evaluation.job import EvalCoordinator
from headway_coordinator.evaluation.state import CandidateState, EvalState
from headway_coordinator.status import previous_evaluation_status
from headway_coordinator.stored_job import StoredJob

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
VERDICT = condition(ConditionType.GATE_PASSED, False, Reason.GATE_NOT_PASSED, "0.5 (0.4 to 0.6)")


def coordinator(folder: Path, previous: RLEvalJobStatus | None = None) -> EvalCoordinator:
    gate = {"candidate": "tuned", "minimum": "0.5"}
    config = EvalConfig(name="job", namespace="ns", uid="uid", spec=spec(gate=gate), candidates=())
    return EvalCoordinator(config, KEYS, FileStore(), folder, lambda status: None, previous=previous)


def test_an_unchanged_condition_keeps_its_transition_time(tmp_path: Path) -> None:
    """Otherwise every status would differ, and the coordinator would write to the API server without end."""
    conditions = coordinator(tmp_path).status().conditions
    assert [each.type for each in conditions] == ["GatePassed"]
    earlier = [each.model_copy(update={"last_transition_time": LONG_AGO}) for each in conditions]
    one = coordinator(tmp_path, RLEvalJobStatus(conditions=earlier))
    assert one.status().conditions == earlier
    assert one.status() == one.status()


def test_a_predecessors_status_remains_until_a_newer_one(tmp_path: Path) -> None:
    stored = RLEvalJobStatus.model_validate(
        {
            "progress": {"groups": 3, "serverSets": [1]},
            "results": [{"name": "tuned", "state": "Running", "rows": 3}],
            "headline": {"candidate": "tuned", "score": "0.50 ± 0.10"},
            "gate": {"result": "Refused", "message": "0.5 (0.4 to 0.6)"},
            "tracking": {"mlflow": {"runId": "a", "experimentId": "1"}},
            "usage": {"cost": "1.20", "evaluationTokens": 7},
            "estimate": {"basis": "Data", "time": LONG_AGO, "likely": "2.40"},
            "budget": {
                "limits": [{"name": "usd", "limit": "5", "spent": "1.2", "reserved": "0", "left": "3.8"}]
            },
            "conditions": [VERDICT.model_dump(mode="json", by_alias=True)],
        }
    )
    written = coordinator(tmp_path).layout
    stored.artifacts = projections.artifacts(written, finished=True, paged=True)
    job_at_server = Mock(spec=StoredJob, read_status=stored.as_object)
    found = coordinator(tmp_path, previous_evaluation_status(job_at_server)).status()
    for field in stored.model_fields_set:
        assert getattr(found, field) == getattr(stored, field), field


@pytest.mark.parametrize(
    ("known", "shown"), [("Passed", "Passed"), ("Pending", "Pending"), (None, "Pending")]
)
def test_a_verdict_stays_until_the_rows_are_judged_again(
    tmp_path: Path, known: str | None, shown: str
) -> None:
    """A restarted coordinator compares the restored rows before it writes results again."""
    before = None if known is None else GateResult(result=known, message="0.5")  # type: ignore[arg-type]
    one = coordinator(tmp_path, RLEvalJobStatus(gate=before))
    one._evaluation = Mock(state=EvalState({}, 3))
    one._compared = Comparison("tuned", {}, gate=Judgment(Verdict.REFUSED, "0.4", ()))
    found = one.status().gate
    assert found is not None
    assert found.result == shown


def test_a_measure_without_an_interval_gives_the_reason() -> None:
    alike = estimate(layout([1] * 500)(np.full(500, 2.0), False))
    alone = estimate(layout([1])(np.full(1, 2.0), False))
    assert alike is not None
    assert alone is not None
    assert projections.in_a_line(alike) == "2.00 (every row alike)"
    assert projections.in_a_line(alone) == "2.00 (too few rows)"
    assert job_projections._in_words(alike) == f"2 ({NOTES[Why.NO_SPREAD]})"
    assert job_projections._in_words(alone) == "2 (too few rows to tell)"


def test_candidate_names_refused_fields_and_missing_prices() -> None:
    tries: dict[int, list[Try]] = {}
    for each in job.tries()["reference"]:
        tries.setdefault(each.place.row, []).append(each)
    reference = CandidateState(
        "reference", "Complete", tries=tries, days=job.days(["reference"]), known_dropped={"seed": ""}
    )
    state = EvalState({"reference": reference}, job.ROWS)
    [result] = projections.results(state, Comparison("base", {}), DEFAULT, date(2026, 1, 2))
    assert result.cost is None
    assert result.message == (
        "the endpoint refused seed, which is left out since. "
        "unpriced: the price book has no price for endpointPrompt:frontier, endpointSample:frontier"
    )
    [result] = projections.results(state, Comparison("base", {}), job.BOOK, date(2026, 1, 2))
    assert result.cost is not None
    reference.fail("EndpointBusy", "it is busy")
    [result] = projections.results(state, Comparison("base", {}), job.BOOK, date(2026, 1, 2))
    assert result.message == "it is busy. the endpoint refused seed, which is left out since"


def test_candidate_counts_tool_answers_that_differ_from_its_run() -> None:
    """The stored episodes hold the count, so it outlives the process."""
    first, *others = job.group("tuned", 0, sampled_by="nobody").episodes
    assert first.outcome is not Outcome.INFRA_ERROR
    one, *rest = (job.group("tuned", row, sampled_by="nobody") for row in range(2))
    groups = [one.model_copy(update={"episodes": [differs(first, 2), *others]}), *rest]
    tries = {group.row: job.measured([group]) for group in groups}
    again = CandidateState("again", "Complete", tries=tries)
    state = EvalState({"again": again}, 2)
    [result] = projections.results(state, Comparison("base", {}), job.BOOK, date(2026, 1, 2))
    assert result.message == (
        "calls that the tools answered otherwise than in the run: 2; write spec.seed and spec.data as in the "
        "run, unless the tools vary by themselves"
    )
    assert result.state == "Complete"
    again.tries = {row: job.measured([job.group("tuned", row)]) for row in range(2)}
    [result] = projections.results(state, Comparison("base", {}), job.BOOK, date(2026, 1, 2))
    assert result.message is None


def differs(episode: EpisodeRecord, answers: int) -> EpisodeRecord:
    """The episode with this many differing answers, after its record was stored and read again."""
    changed = episode.model_copy(update={"differing_answers": answers})
    return EpisodeRecord.model_validate_json(changed.model_dump_json())


@pytest.mark.parametrize("verdict", Verdict)
def test_the_status_has_the_gates_verdict(verdict: Verdict) -> None:
    found = Comparison("base", {}, gate=Judgment(verdict, "0.3", ()))
    gate = projections.gate(found, finished=True)
    assert gate is not None
    assert (gate.result, gate.message) == (verdict.value, "0.3")
    running = projections.gate(found, finished=False)
    assert running is not None
    assert running.result == "Pending"


def test_why_a_candidate_failed_can_always_be_stored() -> None:
    """Half of a surrogate pair is not valid text in a status, a report or a log, and would end the job."""
    candidate = CandidateState("other")
    candidate.fail("EndpointRefused", "it said \ud800")
    assert candidate.message == "it said ?"
