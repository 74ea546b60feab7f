"""The state of a running job: one word for the printer column, and its reason."""

from __future__ import annotations

import pytest
from observed_cluster import World, running, stamp

from headway_api import names

FOUR = names.ROLES[:4]


def trained() -> World:
    """A running job that has completed steps."""
    world = running().later(60)
    world.body["status"]["progress"] = {"step": 4}
    world.carry_out()
    return world


class TestRestarting:
    """A job is restarting while one of its processes is missing or starting, and not before."""

    def state(self, world: World) -> str:
        world.carry_out()
        state: str = world.body["status"]["state"]
        return state

    def test_a_restarting_job_is_not_ready(self) -> None:
        world = trained()
        world.starting("learner")
        assert self.state(world) == "Restarting"
        assert not world.is_true("Ready")
        assert world.is_true("Reconciling")

    @pytest.mark.parametrize("role", FOUR)
    def test_a_job_restarts_while_a_pod_is_missing(self, role: str) -> None:
        assert self.state(trained().gone(role)) == "Restarting"

    @pytest.mark.parametrize("role", FOUR)
    def test_a_job_restarts_while_a_new_pod_starts(self, role: str) -> None:
        world = trained().gone(role)
        began = {"running": {"startedAt": stamp(world.now)}}
        world.pod(
            role,
            1,
            phase="Running",
            conditions=[world.condition("Ready", False)],
            containerStatuses=[{"name": role, "ready": False, "state": began}],
        )
        assert self.state(world.later(20)) == "Restarting"

    @pytest.mark.parametrize("role", ["rollout", "broker"])
    def test_a_job_restarts_while_a_container_restarts_in_its_pod(self, role: str) -> None:
        world = trained()
        lost = world.condition("Ready", False)
        again = {"running": {"startedAt": stamp(world.later(2).now)}}
        status = {"name": role, "ready": False, "state": again, "restartCount": 1}
        world.pod(role, phase="Running", conditions=[lost], containerStatuses=[status])
        assert self.state(world.later(20)) == "Restarting"

    @pytest.mark.parametrize("role", FOUR)
    def test_a_late_probe_of_a_running_process_is_no_restart(self, role: str) -> None:
        world = trained()
        since = {"running": {"startedAt": stamp(world.now)}}
        lost = world.later(30).condition("Ready", False)
        world.pod(
            role,
            phase="Running",
            conditions=[lost],
            containerStatuses=[{"name": role, "ready": False, "state": since}],
        )
        assert self.state(world) == "Training"
        assert world.body["status"]["reason"] == "PodsNotReady"
        assert not world.is_true("Ready")
        assert f"{role}: 0 of 1 pods are ready" in world.status_condition("Progressing")["message"]
        if role == "learner":
            assert world.status_condition("LearnerReady")["reason"] == "PodsNotReady"

    @pytest.mark.parametrize("role", ["coordinator", "learner"])
    @pytest.mark.parametrize("phase", ["Running", "Succeeded"])
    def test_a_process_that_has_done_its_work_is_no_restart(self, role: str, phase: str) -> None:
        """The kubelet reports the end of a container before the end of its pod."""
        world = trained()
        ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}
        world.pod(
            role,
            phase=phase,
            conditions=[world.condition("Ready", False)],
            containerStatuses=[{"name": role, "ready": False, "state": ended}],
        )
        assert self.state(world) == "Training"
        world.workload_status("Job", role, conditions=[world.condition("SuccessCriteriaMet", True)])
        assert self.state(world) == "Training"

    def test_a_rank_that_is_done_first_is_no_restart(self) -> None:
        world = running(learner={"nodes": 2}).ready("learner")
        world.pod("learner", 1, phase="Running", conditions=[world.condition("Ready", True)])
        world.body["status"]["progress"] = {"step": 4}
        ended = {"terminated": {"exitCode": 0}}
        world.pod("learner", phase="Running", conditions=[world.condition("Ready", False)],
            containerStatuses=[{"name": "learner", "ready": False, "state": ended}],
        )  # fmt: skip
        assert self.state(world) == "Training"

    @pytest.mark.parametrize("code", [1, 43, 137])
    def test_a_failed_rank_is_a_restart(self, code: int) -> None:
        world = trained()
        ended = {"terminated": {"exitCode": code}}
        world.pod(
            "learner",
            phase="Running",
            conditions=[world.condition("Ready", False)],
            containerStatuses=[{"name": "learner", "ready": False, "state": ended}],
        )
        assert self.state(world) == "Restarting"

    def test_before_the_first_step_a_job_is_still_starting(self) -> None:
        world = running()
        assert self.state(world.gone("learner")) == "Starting"


class TestEvaluating:
    """The coordinator reports which step it validates."""

    @pytest.mark.parametrize("step", [0, 4])
    def test_a_validation_under_way_is_in_the_status(self, step: int) -> None:
        world = running()
        world.body["status"]["progress"] = {"step": step, "evaluating": step}
        world.carry_out()
        status = world.body["status"]
        assert (status["state"], status["reason"]) == ("Evaluating", "Evaluating")
        assert (
            world.status_condition("Progressing")["status"],
            world.status_condition("Progressing")["reason"],
        ) == (
            "True",
            "Evaluating",
        )
        assert world.is_true("Ready")

    def test_after_a_validation_the_job_trains_on(self) -> None:
        world = running()
        world.body["status"]["progress"] = {"step": 4, "evaluating": 4}
        world.carry_out()
        since = world.status_condition("Progressing")["lastTransitionTime"]
        world.later(30).body["status"]["progress"] = {"step": 4}
        world.carry_out()
        assert world.body["status"]["state"] == "Training"
        assert world.status_condition("Progressing")["reason"] == "Stepping"
        assert world.status_condition("Progressing")["lastTransitionTime"] == since

    def test_a_job_that_loses_a_role_while_validating_restarts(self) -> None:
        world = running().gone("rollout")
        world.body["status"]["progress"] = {"step": 4, "evaluating": 4}
        world.carry_out()
        assert world.body["status"]["state"] == "Restarting"

    def test_a_validation_without_progress_is_stalled(self) -> None:
        world = running()
        world.body["status"]["progress"] = {"step": 4, "evaluating": 4, "stalled": "sandboxes: no image"}
        world.carry_out()
        assert world.body["status"]["state"] == "Stalled"
