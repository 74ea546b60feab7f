"""What the coordinator says of its servers' weights, and that it keeps saying it across a restart."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from a_job import spec
from episodes import version

from headway_api.conditions import Condition, ConditionType, Reason, condition
from headway_api.config import JobConfig
from headway_api.records import LoadFailure
from headway_api.status import Progress, RLTrainingJobStatus
from headway_api.store import FileStore
from headway_rollout import conditions, status
from headway_rollout.coordinator import Coordinator
from headway_rollout.engines.router import Endpoint, Failure, Router

A, B = (Endpoint(f"http://{name}:8000", f"http://{name}:8001") for name in "ab")
LONG_AGO = datetime(2026, 11, 1, tzinfo=UTC)


def router(*holding: Endpoint, wanted: int | None = 1, there: tuple[Endpoint, ...] = (A, B)) -> Router:
    found = Router(wanted=None if wanted is None else version(wanted))
    found.discovered(there)
    for endpoint in holding:
        found.holds(endpoint, version(1))
    return found


def said(status: bool | None, reason: Reason = Reason.SYNCED) -> list[Condition]:
    return [condition(ConditionType.WEIGHTS_IN_SYNC, status, reason, "as it was", now=LONG_AGO)]


def now(before: list[Condition], of: Router) -> tuple[str, str]:
    [found] = conditions.current(before, of)
    assert found.observed_generation is None
    return found.status, found.reason


def test_unknown_until_there_are_weights() -> None:
    [before] = conditions.current([], router(wanted=None))
    assert (before.status, before.reason) == ("Unknown", "Pending")
    assert "learner" in before.message
    [later] = conditions.current([before], router())
    assert (later.status, later.message) == ("Unknown", "no rollout server holds weights yet")
    assert later.last_transition_time == before.last_transition_time
    assert now([], router(there=())) == ("Unknown", "Pending")


def test_true_once_every_server_holds_the_wanted_version() -> None:
    assert now([], router(A)) == ("Unknown", "Pending")
    assert now(said(None, Reason.PENDING), router(A, B)) == ("True", "Synced")


def test_servers_that_take_a_version_change_nothing() -> None:
    for before in (said(True), said(False, Reason.UPDATE_FAILED)):
        for taking in (router(A, B, wanted=2), router(A), router(there=()), router(wanted=None)):
            assert conditions.current(before, taking) == before


def test_a_failed_load_is_told_in_the_servers_words_and_stays_until_it_is_mended() -> None:
    of = router(A, B)
    of.failed(B, Failure("UpdateFailed", "NotFound: s3://b/w"))
    [found] = conditions.current(said(True), of)
    assert (found.status, found.reason) == ("False", "UpdateFailed")
    assert found.message == "http://b:8000: NotFound: s3://b/w"
    assert found.last_transition_time > LONG_AGO
    of.lost(B, "connection refused")
    assert conditions.current([found], of) == [found], "the process ended; its weights are still the matter"
    of.failed(A, Failure("VerificationFailed", "canary off by 3.1"))
    assert now([found], of) == ("False", "VerificationFailed")
    of.holds(A, version(1))
    of.discovered([A])
    assert now([found], of) == ("True", "Synced")


def test_kinds_of_failure_are_reasons() -> None:
    assert set(get_args(LoadFailure)) <= set(Reason)


class Api:
    """An API server's answer to a patch."""

    def __init__(self, answer: dict[str, Any] | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[Any, ...]] = []

    def patch_namespaced_custom_object_status(self, *where: Any, **how: Any) -> Any:
        self.asked.append((*where, how["_content_type"]))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def job(folder: Path) -> JobConfig:
    of = spec().model_copy(update={"output": spec().output.model_copy(update={"uri": f"file://{folder}"})})
    return JobConfig(name="job", namespace="ns", uid="uid", spec=of)


def test_a_successor_goes_on_with_what_was_said_and_leaves_the_operators_alone(tmp_path: Path) -> None:
    theirs = condition(ConditionType.READY, True, Reason.RUNNING, now=LONG_AGO)
    stored = [known.model_dump(mode="json", by_alias=True) for known in [theirs, *said(True)]]
    api = Api({"status": {"state": "Training", "conditions": stored, "progress": {"step": 7}}})
    told = status.told(job(tmp_path), api)
    assert told.conditions == said(True)
    assert told.progress == Progress(step=7)
    assert told.state is None, "the operator's"
    assert api.asked[0][-2:] == ({"status": {}}, "application/merge-patch+json"), "it changes nothing"
    coordinator = Coordinator(job(tmp_path), "token", FileStore(), tmp_path, lambda status: None, told=told)
    assert coordinator.status().conditions == said(True)
    assert coordinator.status().progress == Progress(step=7), "until it knows as much itself"


def test_conditions_start_afresh_where_they_cannot_be_had(tmp_path: Path) -> None:
    assert status.told(job(tmp_path), Api(ConnectionError("no API server"))) == RLTrainingJobStatus()
    assert status.told(job(tmp_path), Api({"metadata": {}})) == RLTrainingJobStatus()
