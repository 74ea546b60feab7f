"""What the coordinator reports about its servers' weights, and that a restart does not change it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock

import aiohttp
import pytest
from episodes import version
from job_rig import spec
from role_keys import KEYS

from headway_api.conditions import WITHOUT_COORDINATOR, Condition, ConditionType, Reason, condition
from headway_api.config import JobConfig
from headway_api.records import LoadFailure
from headway_api.status import RLTrainingJobStatus, TrainingProgress
from headway_api.store import FileStore
from headway_coordinator import conditions, status
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.engines.discovery import by_dns
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.engines.router import Endpoint, Failure, Router, Server
from headway_coordinator.engines.weights import LOAD_SECONDS
from headway_coordinator.stored_job import KubernetesJob
from headway_coordinator.training_parts import TrainingParts

A, B, C = (Endpoint(f"http://{name}:8000", f"http://{name}:8001") for name in "abc")
LONG_AGO = datetime(2026, 11, 1, tzinfo=UTC)


PATIENCE = conditions.PATIENCE_SECONDS


def router(
    *holding: Endpoint, wanted: int | None = 1, there: tuple[Endpoint, ...] = (A, B), replicas: int = 2
) -> Router:
    found = Router(wanted=None if wanted is None else version(wanted), replicas=replicas)
    found.discovered(there)
    for endpoint in holding:
        found.holds(endpoint, version(1))
    return found


def previous(status: bool | None, reason: Reason = Reason.SYNCED) -> list[Condition]:
    return [condition(ConditionType.WEIGHTS_IN_SYNC, status, reason, "as it was", now=LONG_AGO)]


def now(before: list[Condition], of: Router) -> tuple[str, str]:
    [found] = conditions.after(before, of)
    assert found.observed_generation is None
    return found.status, found.reason


def test_the_condition_is_unknown_until_there_are_weights() -> None:
    [before] = conditions.after([], router(wanted=None))
    assert (before.status, before.reason) == ("Unknown", "Pending")
    assert "learner" in before.message
    [later] = conditions.after([before], router(A))
    words = "1 of 2 rollout servers hold verified weights; "
    assert (later.status, later.message) == ("Unknown", f"{words}http://b:8000: {Server(B).problem}")
    assert later.last_transition_time == before.last_transition_time
    assert now([], router(there=())) == ("Unknown", "Pending")


def test_synced_is_true_once_all_servers_hold_the_version() -> None:
    assert now([], router(A)) == ("Unknown", "Pending")
    assert now(previous(None, Reason.PENDING), router(A, B)) == ("True", "Synced")
    assert now(previous(None, Reason.PENDING), router(A, there=(A,))) == ("Unknown", "Pending"), (
        "B is not there"
    )
    assert now([], router(A, there=(A,), replicas=1)) == ("True", "Synced")
    assert now([], router(A, B, replicas=3)) == ("Unknown", "Pending")


def test_the_condition_is_unchanged_while_servers_load() -> None:
    for before in (previous(True), previous(False, Reason.UPDATE_FAILED)):
        for taking in (router(A, B, wanted=2), router(A), router(there=()), router(wanted=None)):
            assert conditions.after(before, taking) == before


def test_synced_stays_true_if_steps_outpace_the_loads() -> None:
    of, tracked, at = router(A, B), conditions.Conditions(previous(None, Reason.PENDING)), [0.0]
    of.clock = lambda: at[0]
    [first] = tracked.current(of, 0.0)
    for step in range(2, 6):
        at[0] = 100.0 * step
        of.want(version(step))  # each look falls between the step's report and the load of its weights
        assert tracked.current(of, 100.0 * step) == [first]
        of.holds(A, version(step))
        assert tracked.current(of, 100.0 * step + 50) == [first], "however long the second one's load takes"
        of.holds(B, version(step))
    assert first.status == "True"


class Job:
    """A job with two servers and a step every 100 s. The first server takes each step's weights at once."""

    def __init__(self) -> None:
        self.now, self.step = 0.0, 1
        self.router = router()
        self.router.clock = lambda: self.now
        for endpoint in (A, B):
            self.router.holds(endpoint, version(1))
        self.tracked = conditions.Conditions(previous(True))

    def steps(self, until: float, second: Callable[[int], int | None], of: Endpoint = B) -> set[str]:
        """Take steps until this second. Returns every status that was reported meanwhile.

        Just before each step ends, the second server takes the version that `second` returns, unless None.
        """
        statuses = set()
        while self.now + 100 <= until:
            self.now += 99
            if (taken := second(self.step)) is not None:
                self.router.holds(of, version(taken))
            statuses.add(self.status())
            self.now, self.step = self.now + 1, self.step + 1
            self.router.want(version(self.step))
            self.router.holds(A, version(self.step))
            statuses.add(self.status())
        return statuses

    def status(self) -> str:
        return self.condition().status

    def condition(self) -> Condition:
        [found] = self.tracked.current(self.router, self.now)
        return found


def overtaken(step: int) -> int:
    """The version that a server holds if its load takes a little longer than a step."""
    return step - 1


def test_always_overtaken_server_is_reported_after_load_timeout() -> None:
    job = Job()
    assert job.steps(100, lambda step: step) == {"True"}
    assert job.steps(100 + LOAD_SECONDS, overtaken) == {"True"}
    job.now += 1
    first = job.condition()
    assert (first.status, first.reason) == ("False", "UpdateTimedOut")
    assert first.message.startswith("http://b:8000: always behind: for more than 600 s ")
    assert "a load takes longer than a step" in first.message
    assert job.steps(5000, overtaken) == {"False"}
    assert job.condition() == first, "in the same words at every step"
    job.router.holds(B, version(job.step))
    assert job.condition().reason == "Synced"


@pytest.mark.parametrize("every", [2, 5])
def test_synced_stays_true_if_a_late_server_catches_up(every: int) -> None:
    job = Job()
    assert job.steps(10_000, lambda step: step if step % every == 0 else overtaken(step)) == {"True"}


def test_one_load_may_take_the_full_load_timeout() -> None:
    job = Job()
    job.now = 10_000.0  # after one long step
    job.router.want(version(2))
    job.router.holds(A, version(2))
    job.now += LOAD_SECONDS
    assert job.status() == "True"
    job.router.holds(B, version(2))
    job.now += 10_000.0
    assert job.status() == "True"


def test_starting_server_is_not_behind_during_its_first_load() -> None:
    job = Job()
    job.router.discovered([A, C])
    job.steps(3000, lambda step: None)
    assert job.status() == "Unknown"
    job.steps(3000 + LOAD_SECONDS, overtaken, of=C)
    assert job.status() == "True"
    job.steps(3200 + LOAD_SECONDS, overtaken, of=C)
    assert (job.status(), job.condition().message[:13]) == ("False", "http://c:8000")


def test_failed_server_regains_full_time_once_it_takes_weights() -> None:
    job = Job()
    job.router.failed(B, Failure(Reason.SERVER_SILENT, "no answer"))
    job.steps(3000, lambda step: None)
    assert job.steps(3000 + LOAD_SECONDS, overtaken) == {"False"}
    assert job.condition().message == "http://b:8000: no answer", "the earlier message stands"
    job.router.holds(B, version(job.step))
    assert job.status() == "True"


def test_server_always_behind_is_remembered_until_replaced() -> None:
    job = Job()
    job.steps(2000, overtaken)
    for there in ([A], [A, C], [A, B]):
        job.router.discovered(there)
        assert job.status() == "False"
        if len(there) > 1:
            job.router.holds(there[1], version(job.step - 1))
        assert job.status() == "False", "none but overtaken weights again"
    job.router.holds(B, version(job.step))
    assert job.status() == "True"


def test_a_repaired_server_is_in_sync_despite_newer_weights() -> None:
    of = router(A, B)
    of.failed(B, Failure(Reason.UPDATE_FAILED, "NotFound"))
    earlier = conditions.after(previous(True), of)
    of.holds(B, version(1))
    of.wanted = version(2)
    assert now(earlier, of) == ("True", "Synced")


@pytest.mark.parametrize("how", ["went", "never came", "not asked again"])
def test_synced_is_withdrawn_when_a_server_stays_missing(how: str) -> None:
    of, tracked = router(A, B), conditions.Conditions(previous(True))
    tracked.current(of, 0.0)
    if how == "went":
        of.discovered([A])
    elif how == "never came":
        of.replicas = 3
    else:
        of.lost(B, "401 Unauthorized")
    assert [known.status for known in tracked.current(of, PATIENCE)] == ["True"]
    [found] = tracked.current(of, PATIENCE + 1)
    assert (found.status, found.reason) == ("Unknown", "Pending")
    held = "2 of 3" if how == "never came" else "1 of 2"
    assert found.message.startswith(f"{held} rollout servers hold verified weights")
    assert ("401 Unauthorized" in found.message) == (how == "not asked again")
    of.replicas = 2
    of.discovered([A, B])
    of.holds(B, version(1))
    assert [known.status for known in tracked.current(of, PATIENCE + 2)] == ["True"]


def test_synced_needs_only_the_requested_number_of_servers() -> None:
    of, tracked = router(A, B), conditions.Conditions(previous(True))
    of.discovered([A])
    of.replicas = 1
    assert tracked.current(of, 0.0) == tracked.current(of, 1000.0)
    assert [known.status for known in tracked.current(of, 1001.0)] == ["True"]


@pytest.mark.parametrize("how", ["comes back", "is replaced", "is not asked for any more"])
def test_a_server_with_failed_weights_counts_until_replaced(how: str) -> None:
    of, tracked = router(A, B), conditions.Conditions(previous(True))
    of.failed(B, Failure(Reason.VERIFICATION_FAILED, "canary off by 3.1"))
    of.discovered([A])
    of.holds(A, version(1))
    for moment in (0.0, 1000.0):
        [found] = tracked.current(of, moment)
        assert (found.status, found.reason) == ("False", "VerificationFailed")
        assert found.message == "http://b:8000 (gone): canary off by 3.1"
    mended = C if how == "is replaced" else B
    if how == "is not asked for any more":
        of.replicas = 1
        of.holds(A, version(1))  # the fleet still polls server A from time to time
    else:
        of.discovered([A, mended])
        [found] = tracked.current(of, 1001.0)
        assert (found.status, found.reason) == ("False", "VerificationFailed"), "it is only there"
        of.holds(mended, version(1))
    assert [known.status for known in tracked.current(of, 1002.0)] == ["True"]
    of.discovered([A])
    assert of.gone == {}


def test_silent_servers_earlier_failure_is_still_reported() -> None:
    of = router(A, B)
    of.silent(A, "connection refused")
    assert now(previous(True), of) == ("False", "ServerSilent")
    of.failed(B, Failure(Reason.UPDATE_TIMED_OUT, "no answer within 600.0 s"))
    of.silent(B, "connection refused")
    [found] = conditions.after(previous(True), of)
    assert (found.status, found.reason) == ("False", "UpdateTimedOut")
    assert found.message == "http://a:8000: connection refused; http://b:8000: no answer within 600.0 s"


def test_a_failed_loads_error_is_reported_until_repaired() -> None:
    of = router(A, B)
    of.failed(B, Failure(Reason.UPDATE_FAILED, "ObjectNotFoundError: s3://b/w"))
    [found] = conditions.after(previous(True), of)
    assert (found.status, found.reason) == ("False", "UpdateFailed")
    assert found.message == "http://b:8000: ObjectNotFoundError: s3://b/w"
    assert found.last_transition_time > LONG_AGO
    of.lost(B, "connection refused")
    assert conditions.after([found], of) == [found], "the process ended; its weights are still the matter"
    of.failed(A, Failure(Reason.VERIFICATION_FAILED, "canary off by 3.1"))
    assert now([found], of) == ("False", "VerificationFailed")
    of.holds(A, version(1))
    assert now([found], of) == ("False", "UpdateFailed")
    of.holds(B, version(1))
    assert now([found], of) == ("True", "Synced")


def test_each_kind_of_failure_has_its_own_reason() -> None:
    assert set(get_args(LoadFailure)) <= set(conditions.GRAVEST_FIRST)


def test_operators_interim_condition_yields_to_the_first_report() -> None:
    for reason in WITHOUT_COORDINATOR:
        theirs = [known.model_copy(update={"observed_generation": 3}) for known in previous(None, reason)]
        assert now(theirs, router(wanted=None)) == ("Unknown", "Pending")
        assert now(theirs, router(A)) == ("Unknown", "Pending")
        assert now(theirs, router(A, B)) == ("True", "Synced")


def test_operator_and_coordinator_share_no_reason() -> None:
    assert not WITHOUT_COORDINATOR & {Reason.SYNCED, Reason.PENDING, *conditions.GRAVEST_FIRST}


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


def at(folder: Path, api: Api) -> KubernetesJob:
    return KubernetesJob(job(folder), api)


def sink(folder: Path, api: Api) -> status.Sink:
    return status.sink_of(at(folder, api))


def test_successor_continues_the_status_without_operators_part(tmp_path: Path) -> None:
    theirs = condition(ConditionType.READY, True, Reason.RUNNING, now=LONG_AGO)
    stored = [known.model_dump(mode="json", by_alias=True) for known in [theirs, *previous(True)]]
    api = Api({"status": {"state": "Training", "conditions": stored, "progress": {"step": 7}}})
    earlier = status.previous_status(at(tmp_path, api))
    assert earlier.conditions == previous(True)
    assert earlier.progress == TrainingProgress(step=7)
    assert earlier.state is None, "the operator's"
    assert api.asked[0][-2:] == ({"status": {}}, "application/merge-patch+json"), "it changes nothing"
    coordinator = Coordinator(
        job(tmp_path), KEYS, FileStore(), tmp_path, lambda status: None, previous=earlier
    )
    assert coordinator.status().conditions == previous(True)
    assert coordinator.status().progress == TrainingProgress(step=7), "until it knows as much itself"


def test_conditions_start_empty_if_the_status_is_unreadable(tmp_path: Path) -> None:
    assert (
        status.previous_status(at(tmp_path, Api(ConnectionError("no API server")))) == RLTrainingJobStatus()
    )
    assert status.previous_status(at(tmp_path, Api({"metadata": {}}))) == RLTrainingJobStatus()


def test_the_answer_to_a_status_write_shows_others_writes(tmp_path: Path) -> None:
    scaled = Api({"spec": {"rollout": {"replicas": 3}}, "status": {}})
    assert sink(tmp_path, scaled)({}) == status.JobUpdate(3, budget=None, grant=None)
    assert sink(tmp_path, Api({"status": {}}))({}) == status.JobUpdate(budget=None, grant=None)
    ordered = Api({"metadata": {"annotations": {"headway.dev/remedy": "OnPolicy@2", "a/b": "c"}}})
    assert sink(tmp_path, ordered)({}) == status.JobUpdate(budget=None, grant=None, remedy="OnPolicy@2")
    given_up = {"name": "large", "lostReason": "ModelNotFound", "lostMessage": "there is none"}
    without = Api({"status": {"candidates": [{"name": "small"}, given_up]}})
    heard = sink(tmp_path, without)({})
    assert heard == status.JobUpdate(
        budget=None, grant=None, lost={"large": ("ModelNotFound", "there is none")}
    )


async def test_scaled_up_job_is_not_in_sync_without_the_new_server(tmp_path: Path) -> None:
    scaled = sink(tmp_path, Api({"spec": {"rollout": {"replicas": 2}}}))
    coordinator = Coordinator(job(tmp_path), KEYS, FileStore(), tmp_path, scaled)
    async with aiohttp.ClientSession() as http:
        fleet = Fleet(http, "token", by_dns("nowhere"))
        coordinator._parts = TrainingParts(Mock(), Mock(), fleet, Mock(), None)
        fleet.router.wanted = version(1)
        fleet.router.discovered([A])
        await coordinator._status.flush()
        fleet.router.holds(A, version(1))
        [found] = coordinator.status().conditions
        assert found.message.startswith("1 of 2 rollout servers")
        fleet.router.discovered([A, B])
        fleet.router.holds(B, version(1))
        assert [known.status for known in coordinator.status().conditions] == ["True"]


def test_a_held_out_server_counts_while_it_must_load_weights() -> None:
    tracked, train = conditions.Conditions(previous(None, Reason.PENDING)), router(A, B)
    held_out = router(there=(C,), replicas=1)
    held_out.failed(C, Failure(Reason.UPDATE_FAILED, "no such file"))
    [found] = tracked.current(train, 0.0, held_out)
    assert (found.status, found.reason) == ("False", "UpdateFailed")
    assert found.message == "http://c:8000, for held-out rows: no such file"
    held_out.discovered(())
    [found] = tracked.current(train, 1.0, held_out)
    assert found.message == "http://c:8000 (gone), for held-out rows: no such file"
    held_out.wanted = None
    [found] = tracked.current(train, 2.0, held_out)
    assert found.status == "True"
