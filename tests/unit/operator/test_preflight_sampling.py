"""A job whose untrained model samples episodes has one rollout server, and no learner before the verdict."""

from __future__ import annotations

from typing import Any

import pytest
from observed_cluster import World, job

from headway_api import names
from headway_api.document import Json

SAMPLING: Json = {"preflight": {"state": "Sampling", "episodes": 8, "wantedEpisodes": 104}}
SERVERS = "refunds-rollout"
HELD_OUT = "refunds-rollout-validation"
FOUR: Json = {"rollout": {"replicas": 4}}
NO_NODE = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."


def sampling(**spec: Any) -> World:
    """A job whose coordinator and broker are ready, and whose server does not exist yet."""
    world = World(job(**spec))
    world.carry_out()
    world.ready("coordinator", "broker")
    world.body["status"] |= SAMPLING
    world.carry_out()
    return world


def says(world: World, **preflight: Any) -> World:
    """Replace the coordinator's report on the preflight."""
    world.body["status"]["preflight"] = {"state": "Running", **preflight}
    world.carry_out()
    return world


def workloads(world: World) -> set[str]:
    return {name for kind, name in world.objects if kind in ("Job", "Deployment")}


def replicas(world: World) -> dict[str, Any]:
    return {item.ref[2]: item.replicas for item in world.plan().wanted if item.ref[0] == "Deployment"}


def test_one_server_samples_and_no_learner_is_made() -> None:
    world = sampling(**FOUR)
    assert workloads(world) == {"refunds-coordinator", "refunds-broker", SERVERS}
    assert replicas(world)[SERVERS] == 1
    assert ("Service", SERVERS) in world.objects
    status = world.body["status"]
    assert (status["state"], status["reason"]) == ("Preflight", "Sampling")
    assert {role["name"]: role["desired"] for role in status["roles"]}["rollout"] == 1
    condition = world.status_condition("PreflightPassed")
    assert (condition["status"], condition["reason"]) == ("Unknown", "Sampling")


def test_a_server_for_held_out_rows_comes_later() -> None:
    world = sampling(evaluation={"servers": "Dedicated"}, **FOUR)
    assert HELD_OUT not in workloads(world)
    before = world.objects["Deployment", SERVERS]["spec"]["selector"]
    says(world, state="Passed")
    assert HELD_OUT in workloads(world)
    assert world.objects["Deployment", SERVERS]["spec"]["selector"] == before


@pytest.mark.parametrize("state", ["Passed", "Warned"])
def test_the_verdict_brings_the_learner_and_more_servers(state: str) -> None:
    world = sampling(**FOUR)
    says(world, state=state)
    assert "refunds-learner" in workloads(world)
    assert replicas(world)[SERVERS] == 4
    assert world.body["status"]["state"] == "Starting"


def test_a_coordinator_that_checks_again_keeps_the_server() -> None:
    world = says(sampling(), state="Running")
    assert SERVERS in workloads(world)
    assert "refunds-learner" not in workloads(world)


def test_static_checks_alone_bring_no_server() -> None:
    world = World(job())
    world.carry_out()
    assert SERVERS not in workloads(says(world, state="Running"))


def test_a_learner_that_runs_outlives_a_preflight_that_samples() -> None:
    world = says(sampling(**FOUR), state="Passed")
    world.body["status"] |= SAMPLING
    world.carry_out()
    assert "refunds-learner" in workloads(world)
    assert replicas(world)[SERVERS] == 4


def test_an_unschedulable_server_is_named() -> None:
    world = sampling()
    world.unschedulable("rollout", NO_NODE)
    world.carry_out()
    assert NO_NODE in world.status_condition("RolloutReady")["message"]
    assert world.body["status"]["reason"] == "Unschedulable"
    world.later(3601).carry_out()
    assert world.status_condition("Failed")["reason"] == "PendingDeadlineExceeded"
    assert NO_NODE in world.status_condition("Failed")["message"]
    assert "refunds-learner" not in workloads(world)


def test_a_sampling_server_may_be_busy_for_hours() -> None:
    world = sampling()
    world.ready("coordinator", "broker", "rollout")
    world.later(24 * 3600).carry_out()
    assert world.body["status"]["state"] == "Preflight"
    assert not world.is_true("Stalled")
    assert not world.is_true("Failed")


def test_the_job_ends_with_a_check_that_failed() -> None:
    world = sampling()
    lines = [{"check": "foothold", "verdict": "Fail", "message": "0 of 104 episodes succeed"}]
    world.body["status"]["preflight"] = {"state": "Failed", "checks": [], "findings": lines}
    world.gave_up("coordinator", "PreflightFailed", "foothold: 0 of 104 episodes succeed")
    world.carry_out()
    condition = world.status_condition("PreflightPassed")
    assert (condition["status"], condition["reason"]) == ("False", "CheckFailed")
    assert condition["message"] == "foothold: 0 of 104 episodes succeed"
    assert world.status_condition("Failed")["reason"] == "PreflightFailed"
    assert names.LEARNER not in {role["name"] for role in world.body["status"]["roles"]}


def test_a_check_that_only_warns_is_named_too() -> None:
    world = sampling()
    lines = [
        {"check": "foothold", "verdict": "Fail", "message": "0 of 104 episodes succeed"},
        {"check": "splits", "verdict": "Pass", "message": "no row twice"},
    ]
    says(world, state="Warned", findings=lines)
    condition = world.status_condition("PreflightPassed")
    assert (condition["status"], condition["reason"]) == ("False", "Warned")
    assert condition["message"] == "foothold: 0 of 104 episodes succeed"


def test_the_warnings_of_a_passed_job_are_reported() -> None:
    world = sampling()
    lines = [
        {"check": "throughput", "verdict": "Warn", "message": "sandboxes start slowly"},
        {"check": "splits", "verdict": "Pass", "message": "no row twice"},
    ]
    says(world, state="Passed", checks=[{"name": "Dataset", "passed": True}], findings=lines)
    message = world.status_condition("PreflightPassed")["message"]
    assert message == "2 checks passed; warning: throughput: sandboxes start slowly"


def test_suspension_takes_the_server_and_resuming_brings_it_back() -> None:
    world = sampling()
    world.ready("rollout")
    world.body["spec"]["suspend"] = True
    world.carry_out()
    assert workloads(world) == set()
    world.gone("coordinator", "broker", "rollout").carry_out()
    assert world.is_true("Suspended")
    world.body["spec"]["suspend"] = False
    world.carry_out()
    assert workloads(world) == {"refunds-coordinator", "refunds-broker", SERVERS}


def test_episodes_that_do_not_end_stall_the_job() -> None:
    world = sampling()
    world.ready("coordinator", "broker", "rollout")
    waits = {"name": "Baseline", "passed": False, "message": "sandbox broker: it does not answer"}
    starting = sampling()
    starting.starting("rollout")
    says(starting, state="Sampling", waitsFor=waits)
    starting.later(600).carry_out()
    assert not starting.is_true("Stalled"), "a server takes its time to load a model"
    says(world, state="Sampling", waitsFor=waits)
    assert not world.is_true("Stalled"), "the coordinator has not met the server yet"
    assert world.plan().requeue_after is not None
    world.later(121).carry_out()
    condition = world.status_condition("Stalled")
    assert (condition["status"], condition["reason"]) == ("True", "NoProgress")
    assert condition["message"] == "sandbox broker: it does not answer"
    says(world, state="Sampling")
    assert not world.is_true("Stalled")
