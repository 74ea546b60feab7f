"""A job that its coordinator has paused has no pods until a person ends exactly this pause."""

from __future__ import annotations

import copy
from datetime import timedelta

import pytest
from job_stages import paused, pausing, resumed_by, suspended
from kstatus import verdict
from observed_cluster import PLATFORM, World, running, stamp

from headway_api import names
from headway_api.spec.training import RLTrainingJob
from headway_api.status import RLTrainingJobStatus
from headway_operator.plan import events
from headway_operator.plan.reading import parse_status

WORKLOADS = {("Job", "refunds-coordinator"), ("Job", "refunds-learner"), ("Deployment", "refunds-rollout")}


def condition(world: World, kind: str = "Suspended") -> tuple[str, str]:
    found = world.status_condition(kind)
    return found["status"], found["reason"]


def state(world: World) -> tuple[str, str]:
    return world.body["status"]["state"], world.body["status"]["reason"]


def named(world: World) -> World:
    """Annotate the job as the command in its status does."""
    return resumed_by(world, world.body["status"]["pause"]["time"])


def test_a_paused_jobs_pods_stop_as_a_suspended_jobs_do() -> None:
    world = running()
    world.ready("sandbox")
    pausing(world)
    assert state(world) == ("Suspending", "Suspending")
    assert not [key for key in world.objects if key[0] in ("Job", "Deployment", "Service")]
    assert ("Pod", "refunds-sandbox-0") in world.objects, "its broker first, or it would be replaced"
    assert "NothingToTrain" in world.status_condition("Suspended")["message"]
    made = world.gone("broker").plan()
    assert [body["metadata"]["name"] for body in made.to_delete] == ["refunds-sandbox-0"]
    world.gone(*names.ROLES).carry_out()
    assert (state(world), condition(world)) == (("Suspended", "Paused"), ("True", "Paused"))
    assert condition(world, "Progressing") == ("False", "Paused")
    assert condition(world, "WeightsInSync") == ("Unknown", "Suspended")
    assert ("ConfigMap", "refunds-config") in world.objects
    assert "suspend" not in world.body["spec"], "a spec is a person's to write"


@pytest.mark.parametrize("policy", ["Accepted", "Running", "Succeeded"])
def test_a_paused_job_waits_for_a_person_and_says_why_and_how(policy: str) -> None:
    world = paused(running(readinessPolicy=policy))
    assert verdict(world.body) == "Failed"
    assert (condition(world, "Stalled"), condition(world, "Ready")) == (
        ("True", "Paused"),
        ("False", "Paused"),
    )
    for kind in ("Suspended", "Stalled", "Ready"):
        message = world.status_condition(kind)["message"]
        assert "paused at step 12: NothingToTrain: 0 of 4 groups had an advantage in 3 batches" in message
        assert "First: give the desk easier cases" in message
        assert f"kubectl annotate rltj refunds -n team headway.dev/resume={stamp(world.now)}" in message


def test_nothing_is_done_while_the_job_is_paused() -> None:
    world = paused(running())
    settled = copy.deepcopy(world.body["status"])
    made = world.later(10_000).carry_out()
    assert (made.to_delete, made.requeue_after) == ((), None)
    assert world.body["status"] == settled
    assert not [key for key in world.objects if key[0] in ("Job", "Deployment", "Pod")]


def test_status_records_the_end_of_a_pause_before_a_pod_is_made() -> None:
    """A starting coordinator reads whether the job is paused."""
    world = named(paused(running()))
    made = world.later(60).carry_out()
    assert (made.wanted, made.requeue_after) == ((), 0)
    assert condition(world) == ("False", "Resumed")
    when = world.body["status"]["pause"]["time"]
    assert world.body["status"]["resumedPause"] == when
    assert (
        world.status_condition("Suspended")["message"]
        == f"the pause of {when} (NothingToTrain at step 12) was ended"
    )
    assert verdict(world.body) == "InProgress"
    assert world.has_finalizer
    world.carry_out()
    assert set(world.objects) >= WORKLOADS
    world.ready(*names.ROLES[:4]).carry_out()
    assert state(world) == ("Training", "Stepping")
    assert verdict(world.body) == "Current"


def test_an_ended_pause_stays_over_if_the_annotation_changes() -> None:
    world = named(paused(running()))
    world.carry_out()
    for value in (None, "2001-01-01T00:00:00Z", "never mind"):
        resumed_by(world, value).carry_out()
        assert set(world.objects) >= WORKLOADS
        assert condition(world) == ("False", "Resumed")


def test_each_pause_is_ended_by_its_own_time() -> None:
    world = named(paused(running()))
    world.carry_out()
    world.carry_out()
    world.later(600).ready(*names.ROLES[:4]).carry_out()
    paused(world)
    assert condition(world) == ("True", "Paused"), "at the same step, and the annotation stands"
    assert "which is not the time of this pause" in world.status_condition("Suspended")["message"]
    named(world).carry_out()
    assert condition(world) == ("False", "Resumed")


@pytest.mark.parametrize(
    "value", ["", "12", "yes", "2026-11-01", "2026-11-01T11:59:59Z", "2026-11-01T12:00:00", "x" * 5000]
)
def test_an_annotation_not_naming_the_pause_is_only_reported(value: str) -> None:
    world = resumed_by(paused(running()), value)
    made = world.carry_out()
    assert (made.to_delete, made.requeue_after) == ((), None)
    assert condition(world) == ("True", "Paused")
    for kind in ("Suspended", "Stalled"):
        message = world.status_condition(kind)["message"]
        assert f"headway.dev/resume is {value[:64]!r}, which is not the time of this pause" in message
        assert len(message) < 2000


def test_a_pauses_time_may_be_written_in_another_zone() -> None:
    world = paused(running())
    there = stamp(world.now + timedelta(hours=2)).replace("Z", "+02:00")
    resumed_by(world, there).carry_out()
    assert condition(world) == ("False", "Resumed")


def test_a_pause_ended_while_pods_stop_ends_once_they_are_gone() -> None:
    """If pods were started earlier, the coordinator that paused the job would still hold its learner."""
    world = named(pausing(running()))
    for _ in range(3):
        world.carry_out()
        assert condition(world) == ("False", "Suspending")
        assert "resumedPause" not in world.body["status"]
    world.gone(*names.ROLES)
    assert world.carry_out().requeue_after == 0
    assert condition(world) == ("True", "Paused")
    world.carry_out()
    assert condition(world) == ("False", "Resumed")


def test_a_pause_and_its_end_have_events_of_their_own() -> None:
    recorded: set[str] = set()

    def unrecorded(world: World) -> list[tuple[str, str]]:
        status = parse_status(RLTrainingJob, world.body)
        assert isinstance(status, RLTrainingJobStatus)
        fresh = events.unrecorded(status, recorded)
        recorded.update(fact.key for fact in fresh)
        return [(fact.reason, fact.message) for fact in fresh]

    world = running()
    unrecorded(world)
    assert unrecorded(pausing(world.later(60))) == []
    ((reason, words),) = unrecorded(paused(world.later(60)))
    pause = world.body["status"]["pause"]
    assert reason == "Paused"
    assert words == (
        f"NothingToTrain at step 12: every pod is gone. To go on: {pause['resume']}; {pause['message']}"
    )
    named(world.later(600)).carry_out()
    ended = f"the pause of {pause['time']} (NothingToTrain at step 12) was ended; step 12"
    assert unrecorded(world) == [("Resumed", ended)]
    world.carry_out()
    assert world.status_condition("Suspended")["message"] == ended.partition(";")[0], "it stays what it was"
    assert unrecorded(world.ready(*names.ROLES[:4])) == []
    assert [each for each, _ in unrecorded(suspended(world.later(600)))] == ["Suspended"]
    world.later(600).body["spec"]["suspend"] = False
    world.carry_out()
    assert unrecorded(world) == [("Resumed", "spec.suspend is false again; step 12")], (
        "its pause ended long before"
    )


def test_an_operator_that_dies_at_any_point_is_replaced() -> None:
    """All its knowledge is in the job: each plan is made from what earlier plans left, or did not leave."""
    world = paused(running())
    named(world).plan()
    world.plan()
    world.carry_out()
    world.plan()
    made = world.plan()
    assert made.wanted
    assert made.status is not None
    assert made.status.as_object()["resumedPause"] == world.body["status"]["pause"]["time"]


def test_deadlines_leave_out_the_time_of_a_pause() -> None:
    world = running(activeDeadlineSeconds=100)
    paused(world.later(50))
    named(world.later(5000)).carry_out()
    assert world.body["status"]["suspendedSeconds"] == 5000
    world.carry_out()
    assert not world.is_true("Failed")
    world.later(49).carry_out()
    assert not world.is_true("Failed")
    world.later(2).carry_out()
    assert world.status_condition("Failed")["reason"] == "ActiveDeadlineExceeded"


class TestSuspendedToo:
    """`suspend` works as usual on a paused job, and does not end the pause."""

    def test_a_suspended_paused_job_follows_its_spec(self) -> None:
        world = paused(running())
        since = world.status_condition("Suspended")["lastTransitionTime"]
        world.later(60).body["spec"]["suspend"] = True
        world.carry_out()
        assert (state(world), condition(world)) == (("Suspended", "Suspended"), ("True", "Suspended"))
        assert verdict(world.body) == "Current"
        message = world.status_condition("Suspended")["message"]
        assert message.startswith("every pod is gone: spec.suspend is true, and the job is paused at step 12")
        assert world.status_condition("Suspended")["lastTransitionTime"] == since

    def test_a_job_is_still_paused_when_its_suspension_ends(self) -> None:
        world = paused(running())
        world.body["spec"]["suspend"] = True
        world.carry_out()
        world.body["spec"]["suspend"] = False
        made = world.carry_out()
        assert (condition(world), state(world)) == (("True", "Paused"), ("Suspended", "Paused"))
        assert verdict(world.body) == "Failed"
        assert not {item.ref[0] for item in made.wanted} & {"Job", "Deployment"}

    def test_a_pause_ended_during_suspension_leaves_it_suspended(self) -> None:
        world = paused(running())
        world.body["spec"]["suspend"] = True
        named(world).carry_out()
        assert world.body["status"]["resumedPause"] == world.body["status"]["pause"]["time"]
        assert condition(world) == ("True", "Suspended")
        assert world.status_condition("Suspended")["message"] == "every pod is gone: spec.suspend is true"
        assert world.carry_out().requeue_after is None
        world.body["spec"]["suspend"] = False
        world.carry_out()
        assert condition(world) == ("False", "Resumed")
        assert set(world.objects) >= WORKLOADS

    def test_a_suspended_job_paused_while_its_pods_stop_is_both(self) -> None:
        world = running()
        world.body["spec"]["suspend"] = True
        paused(world)
        assert condition(world) == ("True", "Suspended")
        world.body["spec"]["suspend"] = False
        world.carry_out()
        assert condition(world) == ("True", "Paused")


@pytest.mark.parametrize("how", ["deleted", "its namespace is deleted"])
def test_a_paused_job_is_deleted_as_any_other(how: str) -> None:
    world = paused(running())
    world.namespace_ends = how != "deleted"
    if world.namespace_ends:
        assert world.plan().delete_job
        return
    world.deleted().carry_out()
    assert world.objects == {}
    world.carry_out()
    assert not world.has_finalizer


def test_a_paused_job_with_refused_spec_resumes_without_objects() -> None:
    world = pausing(running())
    caps = PLATFORM.caps.model_copy(update={"sandboxes": 1})
    world.platform = PLATFORM.model_copy(update={"caps": caps})
    world.gone(*names.ROLES).carry_out()
    assert condition(world) == ("True", "Paused")
    assert condition(world, "Stalled") == ("True", "InvalidSpec")
    named(world).carry_out()
    assert "resumedPause" in world.body["status"]
    assert condition(world) == ("False", "Resumed")
    assert world.carry_out().wanted == ()
    assert state(world) == ("Stalled", "InvalidSpec")


def test_a_job_that_has_ended_stays_ended_when_paused() -> None:
    world = running()
    world.workload_status("Job", "coordinator", conditions=[world.condition("Complete", True)])
    world.carry_out()
    paused(world)
    assert state(world)[0] == "Complete"


@pytest.mark.parametrize("how", ["runs", "has ended", "is deleted"])
def test_the_operator_keeps_writing_which_pause_is_over(how: str) -> None:
    """A field that a writer no longer sends is removed, and the job would be paused again."""
    world = named(paused(running()))
    world.carry_out()
    world.carry_out()
    if how == "has ended":
        world.workload_status("Job", "coordinator", conditions=[world.condition("Complete", True)])
        world.carry_out()
        world.objects.clear()
    elif how == "is deleted":
        world.ending("learner")
        world.deleted().later(1000)
    else:
        world.ready(*names.ROLES[:4]).carry_out()
    made = world.plan().status
    assert made is not None
    assert made.as_object()["resumedPause"] == world.body["status"]["pause"]["time"]
    assert "pause" not in made.as_object(), "the coordinator's"


def test_a_job_that_was_never_paused_has_no_pause_fields() -> None:
    world = resumed_by(running(), "2026-11-01T12:00:00Z")
    world.carry_out()
    assert state(world) == ("Training", "Stepping")
    assert "resumedPause" not in world.body["status"]
    assert world.status_condition("Suspended").get("message", "") == ""
