"""A set of rollout servers that cannot start: its candidates fail, and the others continue."""

from __future__ import annotations

import json
from typing import Any

import pytest
from observed_cluster import World, evaluating

from headway_api.exits import PERMANENT, Termination

MODELS = [
    {"name": "small", "model": {"base": "hf://Qwen/Qwen3-4B"}},
    {"name": "large", "model": {"base": "hf://Qwen/Qwen3-14B"}},
]


def two_sets(**spec: Any) -> World:
    return evaluating(candidates=MODELS, parallelism=2, sets=(0, 1), **spec)


def break_server(world: World, **status: Any) -> None:
    """Give the server of set 1 this container status, in whichever pod it is."""
    pod = world.objects["Pod", "refunds-eval-rollout-10"]
    pod["status"]["conditions"] = [world.condition("Ready", False), world.condition("PodScheduled", True)]
    pod["status"]["containerStatuses"] = [{"name": "rollout", "ready": False, "restartCount": 0} | status]


def gives_up(world: World) -> None:
    words = Termination(
        reason="ModelNotFound", message="there is no such model", field="spec.candidates[large]"
    )
    ended = {"terminated": {"exitCode": PERMANENT, "message": words.model_dump_json()}}
    break_server(world, state={}, lastState=ended)


def lost(world: World) -> dict[str, str | None]:
    """Candidate -> why its servers were given up."""
    return {each["name"]: each.get("lostReason") for each in world.body["status"]["candidates"]}


def test_servers_that_give_up_fail_only_their_candidates() -> None:
    world = two_sets()
    gives_up(world)
    made = world.carry_out()
    assert not made.ending
    assert lost(world) == {"small": None, "large": "ModelNotFound"}
    message = world.body["status"]["candidates"][1]["lostMessage"]
    assert message == "spec.candidates[large]: there is no such model"
    assert ("Deployment", "refunds-eval-rollout-1") not in world.objects
    assert ("Deployment", "refunds-eval-rollout-0") in world.objects
    world.carry_out()
    assert world.is_true("RolloutReady"), "the set that is left has its server"


@pytest.mark.parametrize(
    ("status", "patience", "reason"),
    [
        ({"restartCount": 4, "lastState": {"terminated": {"exitCode": 1}}}, 0, "MaxRestartsExceeded"),
        ({"state": {"waiting": {"reason": "ImagePullBackOff"}}}, 3601, "PendingDeadlineExceeded"),
    ],
)
def test_servers_that_never_come_up_are_given_up(status: dict[str, Any], patience: int, reason: str) -> None:
    world = two_sets(failurePolicy={"maxRestarts": 3})
    break_server(world, **status)
    world.later(patience).carry_out()
    assert lost(world) == {"small": None, "large": reason}
    assert not world.is_true("Failed")


def test_a_server_without_a_node_is_given_up_in_the_end() -> None:
    world = two_sets(pendingDeadlineSeconds=600)
    nowhere = world.condition("PodScheduled", False) | {"reason": "Unschedulable", "message": "no gpu left"}
    world.server(1, phase="Pending", conditions=[nowhere])
    world.later(601).carry_out()
    assert lost(world) == {"small": None, "large": "PendingDeadlineExceeded"}
    assert "no gpu left" in world.body["status"]["candidates"][1]["lostMessage"]


def test_a_set_that_is_not_needed_is_not_judged() -> None:
    world = two_sets().wants_sets(0)
    gives_up(world)
    world.carry_out()
    assert lost(world) == {"small": None, "large": None}


@pytest.mark.parametrize(
    "wrong", [{"seed": -1}, {"baseline": "nobody"}, {"candidates": []}, {"environment": {}}]
)
@pytest.mark.parametrize(
    ("of_set_1", "reason"),
    [
        ({"restartCount": 4, "lastState": {"terminated": {"exitCode": 1}}}, "MaxRestartsExceeded"),
        ({"state": {"waiting": {"reason": "ImagePullBackOff"}}}, "PendingDeadlineExceeded"),
    ],
)
def test_servers_are_given_up_alone_while_the_spec_is_refused(
    wrong: dict[str, Any], of_set_1: dict[str, Any], reason: str
) -> None:
    world = two_sets(failurePolicy={"maxRestarts": 3})
    world.body["spec"] |= wrong
    break_server(world, **of_set_1)
    made = world.later(3601).carry_out()
    assert not made.ending
    assert not world.is_true("Failed")
    assert not world.is_true("Accepted")
    assert lost(world) == {"small": None, "large": reason}
    assert not made.wanted, "nothing is changed"
    assert not made.to_delete
    world.carry_out()
    assert lost(world) == {"small": None, "large": reason}


def test_a_coordinator_that_gives_up_ends_a_refused_evaluation() -> None:
    world = two_sets()
    world.body["spec"]["seed"] = -1
    words = Termination(reason="DatasetEmpty", message="no rows", field="spec.data.uri")
    ended = {"terminated": {"exitCode": PERMANENT, "message": words.model_dump_json()}}
    world.objects["Pod", "refunds-eval-coordinator-0"]["status"]["containerStatuses"] = [
        {"name": "coordinator", "ready": False, "restartCount": 1, "state": {}, "lastState": ended}
    ]
    assert world.carry_out().ending
    assert world.is_true("Failed")


def test_a_lost_set_stays_lost() -> None:
    world = two_sets()
    gives_up(world)
    world.carry_out()
    before = json.dumps(world.body["status"]["candidates"])
    world.wants_sets(0, 1).later(60).carry_out()
    assert ("Deployment", "refunds-eval-rollout-1") not in world.objects
    assert json.dumps(world.body["status"]["candidates"]) == before


def test_a_lost_set_leaves_the_processes_configuration_unchanged() -> None:
    """The coordinator learns of a lost set from the job's status. Its configuration never changes."""
    world = two_sets()
    config = world.objects["ConfigMap", "refunds-eval-config"]["data"]["job.json"]
    gives_up(world)
    world.carry_out()
    world.carry_out()
    assert world.objects["ConfigMap", "refunds-eval-config"]["data"]["job.json"] == config
