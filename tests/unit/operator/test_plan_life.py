"""How the planner handles a job that is suspended, ended, refused, or left to another manager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from observed_cluster import PASSED, PLATFORM, World, job, running, stamp

from headway_api import names
from headway_api.document import Json
from headway_api.finishing import FINISHING_SECONDS, TRACKING_SECONDS
from headway_operator.plan.observed import Observed


def test_a_plan_carried_out_asks_for_nothing_more() -> None:
    world = running()
    settled = copy.deepcopy(world.body["status"])
    made = world.later(30).carry_out()
    assert made.to_delete == ()
    assert world.body["status"] == settled


def test_suspension_stops_every_workload_and_then_says_so() -> None:
    world = running()
    world.ready("sandbox")
    world.body["spec"]["suspend"] = True
    world.carry_out()
    assert world.body["status"]["state"] == "Suspending"
    assert not [key for key in world.objects if key[0] in ("Job", "Deployment", "Service")]
    assert ("Pod", "refunds-sandbox-0") in world.objects, "its broker first, or it would be replaced"
    made = world.gone("broker").plan()
    assert [body["metadata"]["name"] for body in made.to_delete] == ["refunds-sandbox-0"]
    world.gone(*names.ROLES).carry_out()
    assert world.is_true("Suspended")
    assert world.body["status"]["state"] == "Suspended"
    assert ("ConfigMap", "refunds-config") in world.objects


def test_resuming_restores_all_workloads_and_counts_the_pause() -> None:
    world = World(job(status=copy.deepcopy(PASSED), suspend=True, activeDeadlineSeconds=100))
    world.carry_out()
    world.carry_out()
    assert world.is_true("Suspended")
    world.later(500).body["spec"]["suspend"] = False
    world.carry_out()
    assert world.body["status"]["suspendedSeconds"] == 500
    assert world.status_condition("Suspended")["reason"] == "Resumed"
    assert ("Job", "refunds-learner") in world.objects
    assert not world.is_true("Failed"), "suspended time is not part of the deadline"
    world.later(101).carry_out()
    assert world.status_condition("Failed")["reason"] == "ActiveDeadlineExceeded"


def test_a_job_whose_report_is_written_may_end_past_its_deadline() -> None:
    """Its coordinator may log to MLflow for some minutes, and waits for the last scrape."""
    world = running(activeDeadlineSeconds=100)
    world.body["status"]["artifacts"] = {"report": "s3://bucket/runs/job/report.json"}
    assert world.plan().requeue_after == pytest.approx(100 + FINISHING_SECONDS)
    world.later(100 + TRACKING_SECONDS).carry_out()
    assert not world.is_true("Failed")
    complete(world).carry_out()
    assert world.is_true("Complete")


def test_a_job_that_does_not_end_after_its_report_fails() -> None:
    world = running(activeDeadlineSeconds=100)
    world.body["status"]["artifacts"] = {"report": "s3://bucket/runs/job/report.json"}
    world.later(101 + FINISHING_SECONDS).carry_out()
    assert world.status_condition("Failed")["reason"] == "ActiveDeadlineExceeded"


def complete(world: World) -> World:
    condition = world.condition("Complete", True)
    world.workload_status("Job", "coordinator", conditions=[condition])
    return world


def test_the_job_is_complete_when_its_coordinator_is() -> None:
    world = complete(running(schedule={"maxSteps": 3}))
    world.body["status"]["progress"] = {"step": 3}
    made = world.carry_out()
    assert made.ending
    assert world.status_condition("Complete")["reason"] == "MaxStepsReached"
    assert world.is_true("Ready")
    assert world.body["status"]["state"] == "Complete"
    assert world.body["status"]["completionTime"] == stamp(world.now)


def test_a_job_that_ended_early_had_no_rows_for_another_batch() -> None:
    world = complete(running(schedule={"maxSteps": 30}))
    world.body["status"]["progress"] = {"step": 12}
    world.carry_out()
    condition = world.status_condition("Complete")
    assert condition["reason"] == "DataExhausted"
    assert (
        condition["message"] == "the remaining rows of spec.schedule.maxEpochs (1) do not fill another batch"
    )


@pytest.mark.parametrize("change", [{"suspend": True}, {"rollout": {"replicas": 9}}])
def test_an_end_is_final_and_true_of_a_spec_that_is_edited_later(change: Json) -> None:
    world = complete(running())
    world.carry_out()
    world.objects.clear()
    before = copy.deepcopy(world.body["status"])
    world.body["spec"] |= change
    world.body["metadata"]["generation"] = 2
    world.later(5)
    assert world.carry_out().wanted == ()
    status = world.body["status"]
    assert status["observedGeneration"] == 2, "or kstatus would wait for ever"
    assert {known["observedGeneration"] for known in status["conditions"]} == {2}
    for known in before["conditions"]:
        known["observedGeneration"] = 2
    assert status == before | {"observedGeneration": 2}


def test_a_finished_job_is_deleted_after_its_ttl() -> None:
    world = complete(running(ttlSecondsAfterFinished=60))
    world.carry_out()
    world.objects.clear()
    assert world.carry_out().requeue_after == pytest.approx(60)
    assert not world.has_finalizer
    assert not world.plan().delete_job
    assert world.later(61).plan().delete_job


@pytest.mark.parametrize("make", [running, lambda: complete(running())], ids=["running", "ended"])
def test_a_job_is_deleted_with_its_namespace(make: Callable[[], World]) -> None:
    world = make()
    world.carry_out()
    assert not world.plan().delete_job
    world.namespace_ends = True
    made = world.plan()
    assert made.delete_job
    assert not made.wanted
    assert not world.deleted().plan().delete_job


def test_a_namespace_is_looked_at_while_a_learners_pod_ends() -> None:
    world = running()
    world.ready(names.LEARNER)
    assert not Observed(world.now, tuple(world.objects.values())).learner_ends()
    world.ending(names.LEARNER)
    assert Observed(world.now, tuple(world.objects.values())).learner_ends()


def test_another_controllers_job_is_left_alone() -> None:
    made = World(job(managedBy="kueue.x-k8s.io/multikueue")).plan()
    assert made.wanted == ()
    assert made.status is None


def test_naming_this_operator_equals_naming_none() -> None:
    assert World(job(managedBy="headway.dev/operator")).plan().wanted


def test_a_second_operator_takes_only_jobs_that_name_it() -> None:
    second = PLATFORM.model_copy(update={"manager": "headway.dev/second"})
    assert World(job(managedBy="headway.dev/second"), second).plan().wanted
    assert World(job(), second).plan().wanted == ()
    assert World(job(managedBy="headway.dev/second")).plan().wanted == ()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"optimizer": {"learningRate": 0}}, "spec.optimizer.learningRate must be above 0"),
        ({"rollout": {"replicas": 65}}, "spec.rollout.replicas: 65 is above this platform's limit of 64"),
        (
            {"rollout": {"podTemplate": {"spec": {"hostNetwork": True}}}},
            "spec.rollout.podTemplate.spec.hostNetwork may not be set in a job",
        ),
        (
            {"learner": {"podTemplate": {"spec": {"volumes": [{"name": "r", "hostPath": {"path": "/"}}]}}}},
            "spec.learner.podTemplate.spec.volumes[0].hostPath may not be used in a job",
        ),
        ({"environment": {"image": "i", "entrypoint": "no-colon"}}, "spec.environment.entrypoint"),
    ],
)
def test_a_fault_that_the_schema_allows_is_refused_by_name(spec: Json, words: str) -> None:
    world = World(job(**spec))
    made = world.carry_out()
    assert made.wanted == ()
    accepted = world.status_condition("Accepted")
    assert accepted["status"] == "False"
    assert words in accepted["message"]
    assert world.is_true("Stalled")
    assert not world.is_true("Reconciling")


def test_a_sandbox_cannot_be_opened_by_the_jobs_template() -> None:
    sandbox = {"podTemplate": {"spec": {"volumes": [{"name": "r", "hostPath": {"path": "/"}}]}}}
    world = World(job(environment={"image": "i", "entrypoint": "a:B", "sandbox": sandbox}))
    world.carry_out()
    assert "spec.environment.sandbox.podTemplate" in world.status_condition("Accepted")["message"]


class TestRefusedWhileItRuns:
    """Caps were lowered, `kubectl scale` asked for too much, or an upgrade brought a stricter rule."""

    @pytest.fixture(params=["the caps are lowered", "a rule is new", "a block cannot be read"])
    def world(self, request: pytest.FixtureRequest) -> World:
        world = running(activeDeadlineSeconds=1000)
        if request.param == "a rule is new":
            world.body["spec"]["optimizer"] = {"learningRate": 0}
        elif request.param == "a block cannot be read":
            world.body["spec"]["environment"] = {"image": "i", "entrypoint": "no-colon"}
        else:
            caps = PLATFORM.caps.model_copy(update={"sandboxes": 1})
            world.platform = PLATFORM.model_copy(update={"caps": caps})
        return world

    def test_running_workloads_of_a_refused_job_are_kept(self, world: World) -> None:
        objects = dict(world.objects)
        made = world.carry_out()
        assert (made.wanted, made.to_delete) == ((), ())
        assert world.objects == objects
        assert world.has_finalizer
        assert world.status_condition("Accepted")["reason"] == "InvalidSpec"
        assert (world.body["status"]["state"], world.body["status"]["reason"]) == ("Stalled", "InvalidSpec")
        assert world.is_true("Progressing")

    def test_a_refused_job_may_still_complete(self, world: World) -> None:
        made = complete(world).carry_out()
        assert made.ending
        assert world.body["status"]["state"] == "Complete"
        assert world.status_condition("Accepted")["status"] == "False"
        assert {body["kind"] for body in world.plan().to_delete} == {"Job", "Deployment"}

    def test_a_failure_ends_a_refused_job(self, world: World) -> None:
        world.gave_up("learner", "ModelNotLoadable", "no such file", "spec.model.base")
        world.carry_out()
        assert world.status_condition("Failed")["reason"] == "ModelNotLoadable"

    def test_its_deadline_ends_a_refused_job(self, world: World) -> None:
        assert world.plan().requeue_after == pytest.approx(1000)
        world.later(1001).carry_out()
        assert world.status_condition("Failed")["reason"] == "ActiveDeadlineExceeded"

    def test_a_refused_job_can_be_suspended(self, world: World) -> None:
        world.body["spec"]["suspend"] = True
        assert world.carry_out().wanted == ()
        world.gone(*names.ROLES).carry_out()
        assert world.is_true("Suspended")
        assert not world.is_true("Accepted")
        assert not [key for key in world.objects if key[0] in ("Job", "Deployment", "Pod")]

    def test_a_refused_job_starts_nothing_when_it_is_resumed(self, world: World) -> None:
        world.body["spec"]["suspend"] = True
        world.carry_out()
        world.gone(*names.ROLES).carry_out()
        world.body["spec"]["suspend"] = False
        assert world.carry_out().wanted == ()
        assert world.body["status"]["state"] == "Stalled"

    def test_a_spec_mended_is_accepted_again(self, world: World) -> None:
        world.carry_out()
        world.platform = PLATFORM
        world.body["spec"] |= {"optimizer": {}, "environment": {"image": "i", "entrypoint": "env:Env"}}
        assert world.carry_out().wanted
        assert world.is_true("Accepted")
        assert world.body["status"]["state"] == "Training"


def test_objects_of_a_former_version_are_pruned() -> None:
    world = running()
    old = copy.deepcopy(world.objects["ConfigMap", "refunds-config"])
    old["metadata"]["name"] = "refunds-settings-of-old"
    world.objects["ConfigMap", "refunds-settings-of-old"] = old
    assert [body["metadata"]["name"] for body in world.plan().to_delete] == ["refunds-settings-of-old"]


def test_pods_are_never_pruned() -> None:
    world = running()
    world.ready("sandbox")
    assert world.plan().to_delete == ()


class TestQueued:
    """A Job that a queue such as Kueue holds has no pods, which is no fault."""

    def held(self, **status: Any) -> World:
        world = World(job(pendingDeadlineSeconds=60))
        world.carry_out()
        body = world.objects["Job", "refunds-coordinator"]
        body["spec"]["suspend"] = True
        body["status"] = status
        world.ready("broker").carry_out()
        return world

    def test_the_status_says_so_and_no_deadline_counts(self) -> None:
        world = self.held()
        world.later(3600).carry_out()
        assert world.body["status"]["state"] == "Queued"
        assert world.status_condition("Reconciling")["reason"] == "Queued"
        text = world.status_condition("Reconciling")["message"]
        assert "another controller, such as a queue, suspended Job refunds-coordinator" in text
        assert not world.is_true("Failed")

    def test_time_in_the_queue_does_not_count_as_pending(self) -> None:
        world = self.held()
        world.later(3600)
        batch = world.objects["Job", "refunds-coordinator"]
        batch["spec"]["suspend"] = False
        batch["status"] = {"conditions": [world.condition("Suspended", False)]}
        world.later(30).carry_out()
        assert not world.is_true("Failed")
        world.later(40).carry_out()
        assert world.status_condition("Failed")["reason"] == "PendingDeadlineExceeded"
