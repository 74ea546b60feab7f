"""The status of a job in each situation, and what ends a job."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from job_stages import paused
from observed_cluster import PASSED, World, job, running, stamp

from headway_api import names
from headway_api.status import RLTrainingJobStatus
from headway_operator.plan import events
from headway_operator.plan.observed import Observed
from headway_operator.plan.training import Training

FOUR = names.ROLES[:4]
TRAINING = Training()


def fresh(**spec: Any) -> World:
    """A job that the operator has just accepted."""
    world = World(job(**spec))
    world.carry_out()
    return world


def started(**spec: Any) -> World:
    """A job whose preflight has passed and whose learner and servers start."""
    world = World(job(status=copy.deepcopy(PASSED), **spec))
    world.carry_out()
    world.ready("coordinator", "broker")
    world.starting("learner")
    world.starting("rollout")
    world.carry_out()
    return world


def test_a_new_job_is_accepted_and_pending() -> None:
    world = fresh()
    assert world.is_true("Accepted")
    assert world.is_true("Reconciling")
    assert not world.is_true("Ready")
    assert not world.is_true("Stalled")
    assert world.body["status"]["state"] == "Pending"
    assert world.body["status"]["startTime"] == stamp(world.now)
    assert world.status_condition("PreflightPassed")["status"] == "Unknown"


def test_a_checking_coordinator_is_the_preflight() -> None:
    world = fresh().ready("broker")
    world.starting("coordinator")
    world.body["status"]["preflight"] = {"state": "Running", "checks": []}
    world.carry_out()
    assert world.body["status"]["state"] == "Preflight"
    assert world.body["status"]["reason"] == "Running"


def test_a_passed_checks_warning_is_in_the_condition() -> None:
    world = fresh()
    checks = [
        {"name": "Dataset", "passed": True, "message": "8 rows"},
        {"name": "Overlap", "passed": True, "warning": True, "message": "1 of 4 rows have the same prompt"},
    ]
    world.body["status"]["preflight"] = {"state": "Passed", "checks": checks}
    world.carry_out()
    condition = world.status_condition("PreflightPassed")
    assert (condition["status"], condition["reason"]) == ("True", "Passed")
    assert condition["message"] == "2 checks passed; warning: 1 of 4 rows have the same prompt"


def test_a_preflight_that_gets_no_sandbox_says_why() -> None:
    world = fresh().ready("broker")
    world.starting("coordinator")
    words = "spec.environment.sandbox.resources: exceeded quota: small"
    waits = {"name": "Environment", "passed": False, "message": words}
    world.body["status"]["preflight"] = {"state": "Running", "checks": [], "waitsFor": waits}
    world.carry_out()
    assert (world.body["status"]["state"], world.body["status"]["reason"]) == ("Pending", "CreateFailed")
    assert world.status_condition("SandboxesReady")["message"] == words
    assert words in world.status_condition("Reconciling")["message"]
    world.body["status"]["preflight"] = {"state": "Running", "checks": []}
    world.carry_out()
    assert world.body["status"]["state"] == "Preflight"


def test_a_passed_preflight_is_starting_until_all_are_ready() -> None:
    world = started()
    assert world.body["status"]["state"] == "Starting"
    assert "learner: 0 of 1 pods are ready" in world.status_condition("Reconciling")["message"]
    world.ready("learner", "rollout").carry_out()
    assert world.body["status"]["state"] == "Training"
    assert world.is_true("Ready")
    assert not world.is_true("Reconciling")
    assert world.is_true("LearnerReady")
    assert world.is_true("RolloutReady")
    assert world.is_true("SandboxesReady")


def test_one_server_of_many_is_enough_to_go_on() -> None:
    world = running(rollout={"replicas": 4})
    world.unschedulable("rollout-x", "irrelevant")
    world.pod("rollout", 1, phase="Pending", conditions=[
        world.condition("PodScheduled", False) | {"reason": "Unschedulable", "message": "no gpu left"}
    ])  # fmt: skip
    world.later(7200).carry_out()
    assert world.is_true("RolloutReady")
    assert not world.is_true("Failed")
    assert "no gpu left" in world.status_condition("RolloutReady")["message"]


@pytest.mark.parametrize(
    ("policy", "before", "during", "after"),
    [("Accepted", True, True, True), ("Running", False, True, True), ("Succeeded", False, False, True)],
)
def test_ready_means_what_the_policy_says(policy: str, before: bool, during: bool, after: bool) -> None:
    world = started(readinessPolicy=policy)
    assert world.is_true("Ready") is before
    world.ready("learner", "rollout").carry_out()
    assert world.is_true("Ready") is during
    world.workload_status("Job", "coordinator", conditions=[world.condition("Complete", True)])
    world.carry_out()
    assert world.is_true("Ready") is after
    assert not world.is_true("Reconciling")
    assert not world.is_true("Stalled")


@pytest.mark.parametrize(
    "situation", ["fresh", "started", "running", "failed", "complete", "suspended", "paused"]
)
def test_never_reconciling_and_stalled_at_once(situation: str) -> None:
    world = {"fresh": fresh, "started": started}.get(situation, running)()
    if situation == "failed":
        world.gave_up("learner", "ModelNotLoadable", "no such file", "spec.model.base")
    if situation == "complete":
        world.workload_status("Job", "coordinator", conditions=[world.condition("Complete", True)])
    if situation == "suspended":
        world.body["spec"]["suspend"] = True
    if situation == "paused":
        paused(world)
    world.carry_out()
    assert not (world.is_true("Reconciling") and world.is_true("Stalled"))
    assert not (world.is_true("Ready") and (world.is_true("Reconciling") or world.is_true("Stalled")))


def test_a_status_is_true_of_the_generation_it_was_judged_by() -> None:
    world = running()
    world.body["metadata"]["generation"] = 2
    world.carry_out()
    status = world.body["status"]
    assert status["observedGeneration"] == 2
    assert {c["observedGeneration"] for c in status["conditions"]} == {2}


def test_transition_times_move_only_with_the_status() -> None:
    world = started()
    since = world.status_condition("Accepted")["lastTransitionTime"]
    learner = world.status_condition("LearnerReady")["lastTransitionTime"]
    world.later(60).ready("learner", "rollout").carry_out()
    assert world.status_condition("Accepted")["lastTransitionTime"] == since
    assert world.status_condition("LearnerReady")["lastTransitionTime"] != learner


def test_the_coordinators_part_is_never_written() -> None:
    world = running()
    world.body["status"] |= {
        "progress": {"step": 3},
        "usage": {"sampleTokens": 5},
        "conditions": [
            *world.body["status"]["conditions"],
            {
                "type": "WeightsInSync",
                "status": "True",
                "reason": "Synced",
                "lastTransitionTime": stamp(world.now),
            },
        ],
    }
    written = world.later(5).plan().status
    assert written is not None
    body = written.as_object()
    assert not body.keys() & {"progress", "usage", "preflight", "checkpoints", "artifacts"}
    assert "WeightsInSync" not in {c["type"] for c in body["conditions"]}


def synced(world: World, status: str = "True", reason: str = "Synced") -> World:
    """Set the condition of the servers' weights as the coordinator writes it."""
    condition = {"type": "WeightsInSync", "status": status, "reason": reason, "message": "its own words"}
    others = [c for c in world.body["status"]["conditions"] if c["type"] != "WeightsInSync"]
    world.body["status"]["conditions"] = [*others, condition | {"lastTransitionTime": stamp(world.now)}]
    return world


def weights(world: World) -> tuple[str, str]:
    condition = world.status_condition("WeightsInSync")
    return condition["status"], condition["reason"]


def over(how: str) -> World:
    """A job that has just ended, and whose coordinator had reported its weights in sync."""
    world = synced(running())
    world.later(60)
    if how == "Failed":
        world.gave_up("learner", "ModelNotLoadable", "no such file", "spec.model.base")
    else:
        world.workload_status("Job", "coordinator", conditions=[world.condition("Complete", True)])
    world.carry_out()
    return world


class TestWeightsOfNobody:
    """A job without a coordinator makes no statement about its servers' weights."""

    @pytest.mark.parametrize("reported", [("True", "Synced"), ("False", "VerificationFailed")])
    def test_weights_of_a_suspended_job_are_unknown(self, reported: tuple[str, str]) -> None:
        world = synced(running(), *reported)
        world.body["spec"]["suspend"] = True
        world.carry_out()
        assert weights(world) == reported, "the coordinator may still have something to say"
        world.objects.clear()
        world.later(60).carry_out()
        assert weights(world) == ("Unknown", "Suspended")
        assert world.status_condition("WeightsInSync")["lastTransitionTime"] == stamp(world.now)

    def test_weights_are_unknown_after_a_resume_until_the_report(self) -> None:
        world = synced(running())
        world.body["spec"]["suspend"] = True
        world.objects.clear()
        world.carry_out()
        world.body["spec"]["suspend"] = False
        world.carry_out()
        world.ready(*FOUR)
        for _ in range(2):
            made = world.carry_out().status
            assert weights(world) == ("Unknown", "Resumed")
            assert made is not None
            assert "WeightsInSync" in {c.type for c in made.conditions}, "left out, it would lack its fields"
        for reported in (("Unknown", "Pending"), ("True", "Synced")):
            made = synced(world, *reported).carry_out().status
            assert made is not None
            assert "WeightsInSync" not in {c.type for c in made.conditions}
            assert weights(world) == reported

    @pytest.mark.parametrize(("how", "reason"), [("Failed", "Failed"), ("Complete", "Succeeded")])
    def test_weights_are_unknown_for_a_job_that_has_ended(self, how: str, reason: str) -> None:
        world = over(how)
        assert world.is_true(how)
        assert weights(world) == ("Unknown", reason)

    @pytest.mark.parametrize(("how", "reason"), [("Failed", "Failed"), ("Complete", "Succeeded")])
    def test_a_coordinators_report_after_the_end_is_overridden(self, how: str, reason: str) -> None:
        world = synced(over(how), "False", "ServerSilent")
        world.objects.clear()
        world.body["metadata"]["generation"] += 1
        world.carry_out()
        assert weights(world) == ("Unknown", reason)
        assert world.is_true(how)
        made = world.plan().status
        assert made is not None
        known = RLTrainingJobStatus.model_validate(world.body["status"])
        assert TRAINING.own_part(known).as_object() == made.as_object(), "and nothing is written again"

    def test_a_job_that_never_reported_weights_has_no_condition(self) -> None:
        world = over("Complete")
        conditions = world.body["status"]["conditions"]
        world.body["status"]["conditions"] = [c for c in conditions if c["type"] != "WeightsInSync"]
        world.objects.clear()
        world.carry_out()
        assert "WeightsInSync" not in {c["type"] for c in world.body["status"]["conditions"]}


def test_a_later_checkpoint_changes_no_condition() -> None:
    world = running()
    world.body["status"]["checkpoints"] = {"latest": {"step": 1, "uri": "s3://b/1"}}
    world.carry_out()
    assert world.is_true("CheckpointAvailable")
    settled = copy.deepcopy(world.body["status"]["conditions"])
    world.body["status"]["checkpoints"] = {"latest": {"step": 2, "uri": "s3://b/2"}}
    world.carry_out()
    assert world.body["status"]["conditions"] == settled


class TestFailures:
    """What fails a job, and whose message it shows."""

    def test_the_explanation_of_a_process_is_repeated(self) -> None:
        world = fresh()
        world.gave_up("coordinator", "BucketUnavailable", "bucket 'x' cannot be used", "spec.output.uri")
        world.carry_out()
        failed = world.status_condition("Failed")
        assert failed["reason"] == "BucketUnavailable"
        assert failed["message"] == "spec.output.uri: bucket 'x' cannot be used"
        assert world.body["status"]["state"] == "Failed"
        assert world.body["status"]["reason"] == "BucketUnavailable"
        assert world.is_true("Stalled")

    def test_the_words_of_a_server_before_its_restart_count_too(self) -> None:
        world = running()
        ended = {"exitCode": 42, "message": '{"reason": "ModelNotLoadable", "message": "m", "field": null}'}
        state = {"state": {"running": {}}, "lastState": {"terminated": ended}, "name": "rollout"}
        world.pod("rollout", phase="Running", containerStatuses=[state | {"restartCount": 1}])
        world.carry_out()
        assert world.status_condition("Failed")["reason"] == "ModelNotLoadable"

    def test_a_sandbox_that_gave_up_does_not_fail_the_job(self) -> None:
        world = running()
        world.gave_up("sandbox", "EnvironmentNotImportable", "no module")
        world.carry_out()
        assert not world.is_true("Failed")

    @pytest.mark.parametrize("reason", ["BackoffLimitExceeded", "MaxFailedIndexesExceeded"])
    def test_a_job_out_of_restarts_names_the_last_death(self, reason: str) -> None:
        world = running()
        world.died("learner", 137, reason="OOMKilled")
        failed = world.condition("Failed", True) | {"reason": reason, "message": "limit"}
        world.workload_status("Job", "learner", failed=6, conditions=[failed])
        world.carry_out()
        condition = world.status_condition("Failed")
        assert condition["reason"] == "MaxRestartsExceeded"
        assert "learner" in condition["message"]
        assert "OOMKilled at its limit of 1Gi" in condition["message"]

    def test_a_failed_job_waits_a_moment_for_its_pods_last_words(self) -> None:
        world = running()
        del world.objects["Pod", "refunds-coordinator-0"]
        failed = world.condition("Failed", True) | {"reason": "PodFailurePolicy", "message": "exit code 42"}
        world.workload_status("Job", "coordinator", conditions=[failed])
        made = world.carry_out()
        assert not world.is_true("Failed")
        assert made.requeue_after is not None
        assert made.requeue_after <= 6
        world.gave_up("coordinator", "DatasetUnreadable", "no such file", "spec.data.train")
        world.carry_out()
        assert world.status_condition("Failed")["reason"] == "DatasetUnreadable"

    def test_a_failed_job_without_last_words_repeats_its_jobs(self) -> None:
        world = running()
        del world.objects["Pod", "refunds-coordinator-0"]
        failed = world.condition("Failed", True) | {"reason": "PodFailurePolicy", "message": "exit code 42"}
        world.workload_status("Job", "coordinator", conditions=[failed])
        world.later(6).carry_out()
        assert "exit code 42" in world.status_condition("Failed")["message"]

    def test_a_server_that_restarts_too_often_fails_the_job(self) -> None:
        world = running(failurePolicy={"maxRestarts": 2})
        crashed = {"lastState": {"terminated": {"exitCode": 1, "reason": "Error"}}, "restartCount": 3}
        world.waiting("rollout", "CrashLoopBackOff", "back-off", **crashed)
        world.carry_out()
        condition = world.status_condition("Failed")
        assert condition["reason"] == "MaxRestartsExceeded"
        assert "maxRestarts (2)" in condition["message"]
        assert "exit code 1" in condition["message"]

    @pytest.mark.parametrize(
        ("reason", "message", "expected"),
        [
            ("ImagePullBackOff", "Back-off pulling image x", "ImagePullFailed"),
            ("ErrImageNeverPull", "image is not present", "ImagePullFailed"),
            ("CreateContainerConfigError", 'secret "keys" not found', "CreateFailed"),
        ],
    )
    def test_a_blocked_pod_is_reported_and_then_ends_the_job(
        self, reason: str, message: str, expected: str
    ) -> None:
        world = started(pendingDeadlineSeconds=600)
        world.waiting("learner", reason, message)
        world.carry_out()
        assert world.status_condition("LearnerReady")["reason"] == expected
        assert message in world.status_condition("LearnerReady")["message"]
        assert world.status_condition("Reconciling")["reason"] == expected
        assert not world.is_true("Failed")
        world.later(601).carry_out()
        failed = world.status_condition("Failed")
        assert failed["reason"] == "PendingDeadlineExceeded"
        assert message in failed["message"]
        assert "refunds-learner-0" in failed["message"]

    def test_an_unschedulable_pod_is_named_with_the_schedulers_words(self) -> None:
        world = started(pendingDeadlineSeconds=600)
        world.unschedulable("rollout", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
        world.carry_out()
        assert world.status_condition("RolloutReady")["reason"] == "Unschedulable"
        world.later(601).carry_out()
        assert "3 Insufficient nvidia.com/gpu" in world.status_condition("Failed")["message"]

    def test_of_two_waiting_pods_the_unschedulable_one_is_named(self) -> None:
        world = started(pendingDeadlineSeconds=600)
        world.unschedulable("rollout", "no node")
        world.later(601).carry_out()
        assert "no node" in world.status_condition("Failed")["message"]

    def test_the_planner_asks_to_be_woken_at_the_deadline(self) -> None:
        world = started(pendingDeadlineSeconds=600)
        assert world.later(100).plan().requeue_after == pytest.approx(500)

    def test_a_quota_that_forbids_pods_is_reported(self) -> None:
        world = started()
        del world.objects["Pod", "refunds-rollout-0"]
        refused = world.condition("ReplicaFailure", True) | {"message": "exceeded quota: gpus"}
        world.workload_status("Deployment", "rollout", conditions=[refused])
        world.carry_out()
        words = (
            "spec.rollout.resources: exceeded quota: gpus; free some of it, lower what the job asks for, or"
        )
        assert world.status_condition("RolloutReady")["message"] == f"{words} have the ResourceQuota raised"

    def test_an_event_reports_that_pods_are_refused(self) -> None:
        world = started()
        del world.objects["Pod", "refunds-learner-0"]
        again = world.plan().requeue_after
        assert again is not None
        assert again <= 5
        world.later(5).refusals["Job-refunds-learner"] = "pods is forbidden: exceeded quota: gpus"
        world.carry_out()
        assert world.status_condition("LearnerReady")["reason"] == "CreateFailed"
        assert "exceeded quota: gpus" in world.status_condition("Reconciling")["message"]

    def test_a_refused_deployment_makes_the_operator_check_the_job(self) -> None:
        """There is a single event, which must say what both workloads lack."""
        world = started().later(1)
        del world.objects["Pod", "refunds-learner-0"], world.objects["Pod", "refunds-rollout-0"]
        assert not Observed(world.now, tuple(world.objects.values())).jobs_without_pods()
        refused = world.condition("ReplicaFailure", True) | {"message": "exceeded quota: gpus"}
        world.workload_status("Deployment", "rollout", conditions=[refused])
        [asked] = Observed(world.now, tuple(world.objects.values())).jobs_without_pods()
        assert (asked["kind"], asked["metadata"]["name"]) == ("Job", "refunds-learner")

    @pytest.mark.parametrize("disrupted", [True, False])
    def test_a_pod_whose_volume_is_full_names_the_limit(self, disrupted: bool) -> None:
        """The kubelet reports it in the pod's status alone. A condition may repeat it."""
        world = started()
        words = 'Usage of EmptyDir volume "cache" exceeds the limit "1Gi". '
        ended = world.condition("DisruptionTarget", True) | {"message": words}
        killed = [{"name": "learner", "state": {"terminated": {"exitCode": 137, "reason": "Error"}}}]
        more = {"conditions": [ended]} if disrupted else {"containerStatuses": killed, "conditions": []}
        world.pod("learner", phase="Failed", reason="Evicted", message=words, **more)
        status = world.carry_out().status
        assert status is not None
        [fact] = [fact for fact in events.unrecorded(status, set()) if fact.reason == "Disrupted"]
        assert fact.warning
        assert fact.message.startswith(world.status_condition("LearnerReady")["message"])
        condition = world.status_condition("LearnerReady")
        assert condition["reason"] == "Disrupted"
        assert condition["message"].startswith(
            "cacheSizeLimit of the chart's values: pod refunds-learner-0: Usage"
        )

    def test_a_sandbox_that_cannot_start_is_reported(self) -> None:
        world = running()
        world.waiting("sandbox", "ErrImagePull", "no such image")
        world.carry_out()
        assert world.status_condition("SandboxesReady")["status"] == "False"
        assert "no such image" in world.status_condition("SandboxesReady")["message"]

    @pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
    def test_an_ended_sandbox_is_fine_while_another_starts(self, phase: str) -> None:
        world = running()
        world.pod("sandbox", 0, phase=phase)
        world.starting("sandbox", 1)
        world.carry_out()
        assert world.is_true("SandboxesReady")

    def test_sandboxes_that_all_fail_are_reported(self) -> None:
        world = running()
        world.died(
            "sandbox", 42, '{"reason": "EnvironmentNotImportable", "message": "no module", "field": null}'
        )
        world.carry_out()
        assert "no module" in world.status_condition("SandboxesReady")["message"]
        assert not world.is_true("Failed")


class TestRestarts:
    """Restarts are counted by role, and kept when the pods are gone."""

    def test_failed_pods_of_a_job_count(self) -> None:
        world = running(learner={"nodes": 2})
        world.workload_status("Job", "learner", failed=4)
        world.carry_out()
        roles = {role["name"]: role for role in world.body["status"]["roles"]}
        assert roles["learner"]["restarts"] == 2, "one restart of the role kills every rank"

    def test_restarts_are_kept_after_their_pods_are_gone(self) -> None:
        world = running()
        world.workload_status("Job", "learner", failed=2)
        world.carry_out()
        world.workload_status("Job", "learner")
        world.carry_out()
        world.body["spec"]["suspend"] = True
        world.carry_out()
        roles = {role["name"]: role for role in world.body["status"]["roles"]}
        assert roles["learner"] == {"name": "learner", "desired": 0, "ready": 0, "restarts": 2}


class TestProgress:
    """A running job without progress says so."""

    def test_the_coordinators_own_message_is_repeated(self) -> None:
        world = running()
        world.body["status"]["progress"] = {"step": 2, "stalled": "no rollout server holds version 0.2"}
        world.carry_out()
        assert world.status_condition("Stalled")["message"] == "no rollout server holds version 0.2"
        assert world.body["status"]["state"] == "Stalled"

    def test_a_coordinator_without_reports_is_noticed(self) -> None:
        world = running()
        world.later(3601).carry_out()
        assert world.status_condition("Stalled")["reason"] == "NoProgress"

    def test_a_step_clears_the_lack_of_progress(self) -> None:
        world = running()
        world.later(3601).carry_out()
        world.body["status"]["progress"] = {"step": 1, "updatedTime": stamp(world.now)}
        world.carry_out()
        assert not world.is_true("Stalled")
        assert world.is_true("Ready")

    def test_the_planner_asks_to_be_woken_to_check_progress(self) -> None:
        again = running().plan().requeue_after
        assert again is not None
        assert again <= 3600


def test_the_scale_subresource_reads_the_rollout_servers() -> None:
    world = running(rollout={"replicas": 2})
    status = world.body["status"]
    assert status["rolloutReplicas"] == 1
    assert f"{names.LABEL_COMPONENT}=rollout" in status["rolloutSelector"]


def test_own_part_keeps_the_operators_whole_status() -> None:
    world = running()
    made = world.plan().status
    assert made is not None
    assert TRAINING.own_part(made).as_object() == made.as_object()
