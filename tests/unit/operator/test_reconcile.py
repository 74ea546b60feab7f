"""A round of the reconciler against a small API server in memory: its requests, and their order."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from observed_cluster import PLATFORM, eval_job, job, stamp
from stored_objects import Server

from headway_api import names
from headway_api.document import Json
from headway_api.keys import Key
from headway_operator.apply import ROUNDS, PlanBlockedError
from headway_operator.cache import Cache, ref_of
from headway_operator.controller import Controller
from headway_operator.kube import ApiError
from headway_operator.plan.planner import utc_now
from headway_operator.reconcile import Reconciler
from headway_operator.telemetry import Telemetry
from headway_operator.wire import UNREAD

KEY = ("RLTrainingJob", "team", "refunds")
OURS = names.FINALIZER_TEARDOWN


class Desk:
    """A reconciler, and its cached view of the server's job."""

    def __init__(self, **spec: Any) -> None:
        self.server = Server(KEY)
        self.cache = Cache()
        self.reconciler = Reconciler(self.server, self.cache, PLATFORM, lambda kind, result: None)
        self.server.put(job(**spec))
        self.see()

    def see(self) -> None:
        """Let the cache catch up with the server."""
        assert self.server.job is not None
        self.cache.put(copy.deepcopy(self.server.job))

    def reconcile(self) -> float | None:
        return self.reconciler.reconcile(KEY)

    @property
    def finalizers(self) -> list[str]:
        assert self.server.job is not None
        found: list[str] = self.server.job["metadata"].get("finalizers", [])
        return found

    def children(self) -> list[str]:
        return sorted(kind for kind, _, _ in self.server.objects if kind not in ("RLTrainingJob", "Event"))


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_the_job_is_held_before_its_first_object_is_made(desk: Desk) -> None:
    desk.reconcile()
    assert desk.finalizers == [OURS]
    assert desk.server.requests[0] == "merge RLTrainingJob"
    assert desk.server.requests.count("merge RLTrainingJob") == 1


def test_a_job_whose_objects_lost_their_owner_is_taken_down(desk: Desk) -> None:
    """`kubectl delete --cascade=orphan` does that."""
    desk.reconcile()
    desk.reconcile()
    for ref, body in list(desk.server.objects.items()):
        if ref[0] not in ("RLTrainingJob", "Event"):
            metadata = {key: value for key, value in body["metadata"].items() if key != "ownerReferences"}
            desk.cache.put(desk.server.put(body | {"metadata": metadata}))
    desk.server.change_job(deletionTimestamp="2026-11-01T12:00:00Z")
    desk.see()
    while desk.reconcile() is not None:
        pass
    assert desk.server.job is None
    assert desk.children() == []


def test_a_second_reconcile_writes_nothing(desk: Desk) -> None:
    desk.reconcile()
    desk.server.requests.clear()
    desk.reconcile()
    assert desk.server.requests == []


def test_each_key_is_random_and_independent() -> None:
    seen: set[str] = set()
    for _ in range(2):
        desk = Desk()
        desk.reconcile()
        (secret,) = [body for ref, body in desk.server.objects.items() if ref[0] == "Secret"]
        assert secret["stringData"].keys() == set(Key)
        assert secret["immutable"] is True
        assert all(len(key) >= 43 for key in secret["stringData"].values()), "32 bytes"
        seen |= set(secret["stringData"].values())
    assert len(seen) == 2 * len(Key), "no two are the same, and none is another job's"


def test_a_deleted_job_is_released_when_all_is_gone(desk: Desk) -> None:
    desk.reconcile()
    assert desk.children()
    desk.server.change_job(deletionTimestamp="2026-11-01T12:00:00Z")
    desk.see()
    while (again := desk.reconcile()) is not None:
        assert again < 1
        assert desk.server.job is not None
        assert desk.finalizers == [OURS]
    assert desk.server.job is None
    assert desk.children() == []
    assert desk.server.requests[-1] == "merge RLTrainingJob"


def test_finalizers_of_others_are_kept(desk: Desk) -> None:
    desk.server.change_job(finalizers=["theirs/one", "theirs/two"])
    desk.see()
    desk.reconcile()
    assert desk.finalizers == ["theirs/one", "theirs/two", OURS]
    desk.server.change_job(deletionTimestamp="2026-11-01T12:00:00Z")
    desk.see()
    while desk.reconcile() is not None:
        pass
    assert desk.finalizers == ["theirs/one", "theirs/two"]


def test_a_job_changed_meanwhile_is_requeued_without_objects(desk: Desk) -> None:
    desk.server.change_job(finalizers=["theirs/new"])
    assert desk.reconcile() == 0.0
    assert desk.children() == []
    desk.reconcile()
    assert desk.finalizers == ["theirs/new", OURS]


def test_a_job_deleted_meanwhile_and_its_objects_are_not_created(desk: Desk) -> None:
    assert desk.server.job is not None
    del desk.server.objects[ref_of(desk.server.job)]
    assert desk.reconcile() is None
    assert desk.server.objects == {}


def test_a_later_job_of_the_same_name_is_left_alone(desk: Desk) -> None:
    desk.server.change_job(uid="another")
    assert desk.reconcile() is None
    assert desk.finalizers == []
    assert desk.children() == []


def test_a_forbidden_finalizer_blocks_the_job_and_is_reported(desk: Desk) -> None:
    def forbid(verb: str, kind: str) -> None:
        if (verb, kind) == ("merge", "RLTrainingJob"):
            raise ApiError(403, "Forbidden", "cannot patch resource rltrainingjobs")

    desk.server.before = forbid
    with pytest.raises(PlanBlockedError):
        desk.reconcile()
    assert desk.children() == []
    assert desk.server.job is not None
    conditions = {c["type"]: c for c in desk.server.job["status"]["conditions"]}
    assert "cannot patch resource rltrainingjobs" in conditions["Reconciling"]["message"]


def test_a_teardown_refused_in_the_midst_keeps_the_job(desk: Desk) -> None:
    desk.reconcile()
    desk.server.change_job(deletionTimestamp="2026-11-01T12:00:00Z")
    desk.see()

    def stumble(verb: str, kind: str) -> None:
        if (verb, kind) == ("delete", "Secret"):
            raise ApiError(503, "ServiceUnavailable", "no")

    desk.server.before = stumble
    desk.reconcile()
    for _ in range(3):
        with pytest.raises(ApiError):
            desk.reconcile()
    assert desk.finalizers == [OURS]
    desk.server.before = lambda verb, kind: None
    while desk.reconcile() is not None:
        pass
    assert desk.children() == []


def test_a_finished_job_past_its_ttl_is_released_and_deleted() -> None:
    desk = Desk(
        ttlSecondsAfterFinished=0,
        status={
            "completionTime": "2026-11-01T12:00:00Z",
            "conditions": [
                {
                    "type": "Complete",
                    "status": "True",
                    "reason": "MaxStepsReached",
                    "lastTransitionTime": "2026-11-01T12:00:00Z",
                }
            ],
        },
    )
    desk.server.change_job(finalizers=[OURS])
    desk.see()
    desk.reconcile()
    assert desk.server.job is None
    assert desk.server.requests == ["merge RLTrainingJob", "delete RLTrainingJob"]


class TestBothKinds:
    """Jobs of both kinds may have the same name, and do not affect each other."""

    KEY = ("RLEvalJob", "team", "refunds")

    def both(self) -> Desk:
        desk = Desk()
        desk.server.put(self.evaluation())
        desk.cache.put(copy.deepcopy(desk.server.objects[self.KEY]))
        return desk

    def evaluation(self) -> Json:
        body = eval_job()
        return body | {"metadata": body["metadata"] | {"uid": "e0000000-1111"}}

    def owners(self, desk: Desk) -> dict[str, set[str]]:
        """Kind of owner -> names of the objects that it owns."""
        found: dict[str, set[str]] = {}
        for body in desk.server.objects.values():
            for owner in body["metadata"].get("ownerReferences", []):
                found.setdefault(owner["kind"], set()).add(body["metadata"]["name"])
        return found

    def test_each_kind_has_its_own_objects_and_status(self) -> None:
        desk = self.both()
        for _ in range(2):
            desk.reconcile()
            desk.reconciler.reconcile(self.KEY)
        owned = self.owners(desk)
        assert "refunds-coordinator" in owned["RLTrainingJob"]
        assert "refunds-eval-coordinator" in owned["RLEvalJob"]
        assert not owned["RLTrainingJob"] & owned["RLEvalJob"]
        assert desk.server.objects[self.KEY]["status"]["candidates"][0]["name"] == "base"
        assert "candidates" not in desk.server.objects[KEY]["status"]

    def test_one_kind_is_taken_down_without_the_other(self) -> None:
        desk = self.both()
        for _ in range(2):
            desk.reconcile()
            desk.reconciler.reconcile(self.KEY)
        theirs = self.owners(desk)["RLTrainingJob"]
        body = desk.server.objects[self.KEY]
        desk.server.put(body | {"metadata": body["metadata"] | {"deletionTimestamp": "2026-11-01T12:00:00Z"}})
        desk.cache.put(copy.deepcopy(desk.server.objects[self.KEY]))
        while desk.reconciler.reconcile(self.KEY) is not None:
            pass
        assert self.KEY not in desk.server.objects
        assert self.owners(desk) == {"RLTrainingJob": theirs}

    def test_an_object_name_of_both_kinds_goes_to_the_first(self) -> None:
        """A training job `refunds-eval` and an evaluation `refunds` give their objects the same names."""
        desk = self.both()
        owner = {"kind": "RLTrainingJob", "name": "refunds-eval", "uid": "t-1", "controller": True}
        metadata = {"name": "refunds-eval-config", "namespace": "team", "ownerReferences": [owner]}
        desk.server.put({"kind": "ConfigMap", "metadata": metadata})
        desk.reconciler.reconcile(self.KEY)
        with pytest.raises(PlanBlockedError, match="belongs to RLTrainingJob refunds-eval"):
            desk.reconciler.reconcile(self.KEY)
        conditions = {c["type"]: c for c in desk.server.objects[self.KEY]["status"]["conditions"]}
        assert (conditions["Stalled"]["status"], conditions["Stalled"]["reason"]) == ("True", "NameConflict")


def test_a_job_waiting_for_another_is_queued_when_that_changes() -> None:
    controller = Controller(Server(KEY), PLATFORM, Telemetry())
    wanted = {"name": "tuned", "checkpoint": {"job": "refunds"}}
    controller.cache.put(eval_job("waits", candidates=[wanted]))
    controller.cache.put(eval_job("other", candidates=[wanted | {"checkpoint": {"job": "another"}}]))
    controller.cache.put(eval_job("settled", candidates=[wanted], status={"candidates": [{"name": "tuned"}]}))
    model = {"base": "hf://Qwen/Qwen3-8B", "warmStart": {"job": "refunds"}}
    for number, name in enumerate(("warm", "cold")):
        body = job(name, **({"model": model} if name == "warm" else {}))
        body["metadata"] |= {"uid": name, "resourceVersion": str(number + 1)}
        controller.cache.put(body)
    controller.custom_changed(job())
    due = {controller.queue.get(0) for _ in range(controller.queue.depth())}
    assert due == {KEY, ("RLEvalJob", "team", "waits"), ("RLTrainingJob", "team", "warm")}


def events_of(desk: Desk) -> list[Json]:
    return [body for (kind, _, _), body in desk.server.objects.items() if kind == "Event"]


def test_events_of_a_job_are_recorded_once_by_any_reconciler(desk: Desk) -> None:
    for _ in range(3):
        desk.reconcile()
        desk.see()
        desk.reconciler = Reconciler(desk.server, desk.cache, PLATFORM, lambda kind, result: None)
    assert desk.server.job is not None
    signal = {"name": "RewardCollapsed", "state": "Raised", "since": 3}
    status = {"startTime": stamp(utc_now()), "signals": [signal], "progress": {"step": 4, "maxSteps": 9}}
    desk.server.put(desk.server.job | {"status": desk.server.job["status"] | status})
    for _ in range(3):
        desk.see()
        desk.reconcile()
    assert [event["reason"] for event in events_of(desk)] == ["Accepted", "SignalRaised"]
    assert desk.server.requests.count("create Event") == 2, "each operator read what was recorded"


def test_a_failed_event_write_blocks_no_job_and_is_retried(desk: Desk) -> None:
    def refuse(verb: str, kind: str) -> None:
        if (verb, kind) == ("create", "Event"):
            raise ApiError(503, "ServiceUnavailable", "later")

    desk.server.before = refuse
    desk.reconcile()
    assert {"ConfigMap", "Job"} <= set(desk.children())
    assert desk.server.job is not None
    assert desk.server.job["status"]["conditions"]
    desk.see()
    desk.server.before = lambda verb, kind: None
    desk.reconcile()
    assert [event["reason"] for event in events_of(desk)] == ["Accepted"]


def test_an_unread_job_whose_status_stays_unwritten_has_an_event() -> None:
    desk = Desk()
    assert desk.server.job is not None
    body = copy.deepcopy(desk.server.job) | {UNREAD: "spec.environment.config: nested too deep"}
    body["metadata"]["resourceVersion"] = "9999"
    del body["spec"]["environment"]
    desk.cache.put(body)

    def refuse(verb: str, kind: str) -> None:
        if kind.endswith("/status"):
            raise ApiError(422, "Invalid", "spec.environment.config: too deep")

    desk.server.before = refuse
    desk.reconcile()
    (event,) = [event for event in events_of(desk) if event["reason"] == "InvalidSpec"]
    assert event["message"] == "spec.environment.config: nested too deep"
    assert event["involvedObject"]["uid"] == body["metadata"]["uid"]


HOT = {"optimizer": {"learningRate": 0.01}}
"""Spec fields that a guard rail warns of."""


class TestWarnings:
    """The status has the warnings about a spec, and one event repeats them."""

    def events(self, desk: Desk) -> list[Json]:
        return [event for event in events_of(desk) if event["reason"] == "SpecUnwise"]

    def test_a_sound_job_has_no_warning(self, desk: Desk) -> None:
        desk.reconcile()
        assert desk.server.job is not None
        assert "warnings" not in desk.server.job["status"]
        assert self.events(desk) == []

    def test_status_and_event_have_the_same_warnings_once(self) -> None:
        desk = Desk(**HOT)
        for _ in range(3):
            desk.reconcile()
            desk.see()
        assert desk.server.job is not None
        (text,) = desk.server.job["status"]["warnings"]
        assert text.startswith("spec.optimizer.learningRate is above 0.001")
        (event,) = self.events(desk)
        assert (event["type"], event["reason"], event["message"]) == ("Warning", "SpecUnwise", text)
        assert event["involvedObject"]["uid"] == desk.server.job["metadata"]["uid"]
        assert desk.server.requests.count("create Event") == 2, "this one and that it was accepted"

    def test_a_new_spec_is_warned_about_again_and_the_job_still_runs(self) -> None:
        desk = Desk(**HOT)
        desk.reconcile()
        desk.see()
        assert desk.server.job is not None
        spec = desk.server.job["spec"] | {"schedule": {"maxSteps": 5}}
        metadata = desk.server.job["metadata"] | {"generation": 2}
        desk.server.put(desk.server.job | {"spec": spec, "metadata": metadata})
        desk.see()
        desk.reconcile()
        assert len(desk.server.job["status"]["warnings"]) == 2
        before, now = (event["message"] for event in self.events(desk))
        assert now.startswith(before)
        assert "spec.optimizer.warmupSteps" in now.removeprefix(before)
        assert {"ConfigMap", "Job"} <= set(desk.children())

    def test_an_existing_event_is_no_error(self) -> None:
        desk = Desk(**HOT)

        def refuse(verb: str, kind: str) -> None:
            if (verb, kind) == ("create", "Event"):
                raise ApiError(409, "AlreadyExists", "there is one")

        desk.server.before = refuse
        desk.reconcile()
        assert desk.server.job is not None
        assert desk.server.job["status"]["warnings"]


def test_resyncs_apply_objects_once_in_12_but_check_each_secret(desk: Desk) -> None:
    for _ in range(3):
        desk.reconcile()
    pinned = ("Job", "Deployment", "Secret", "RLTrainingJob", "Event")
    kinds = [kind for kind in desk.children() if kind not in pinned]
    assert len(kinds) > ROUNDS, "so that a part of them is some and not all"
    desk.server.requests.clear()
    desk.reconcile()
    assert desk.server.requests == []
    rounds = []
    for _ in range(ROUNDS):
        desk.server.requests.clear()
        desk.reconciler.forget()
        desk.reconcile()
        rounds.append(sorted(desk.server.requests))
    assert all(found.count("create Secret") == 1 for found in rounds)
    applied = [request for found in rounds for request in found if request != "create Secret"]
    assert sorted(applied) == sorted(f"apply {kind}" for kind in kinds)
    assert max(map(len, rounds)) < len(kinds) / 2
