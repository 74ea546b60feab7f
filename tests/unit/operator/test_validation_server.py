"""The rollout server of a training job that samples only held-out rows."""

from __future__ import annotations

from typing import Any

import pytest
from observed_cluster import FROM_MEMORY, PASSED, PLATFORM, World, job

from headway_api import names
from headway_api.document import Json

DEDICATED: Json = {"evaluation": {"servers": "Dedicated"}}
FULL: Json = {"model": {"base": "hf://Qwen/Qwen3-8B", "full": {}}}
TRAIN, HELD_OUT = "refunds-rollout", "refunds-rollout-validation"


def of_set(which: str) -> Json:
    return {names.LABEL_JOB_UID: job()["metadata"]["uid"], names.LABEL_COMPONENT: "rollout"} | {
        names.LABEL_SERVER_SET: which
    }


def begun(*, train: int = 1, held_out: int = 1, **spec: Any) -> World:
    """A job that has begun, with this many ready servers."""
    world = World(job(status=dict(PASSED), **DEDICATED | spec))
    world.carry_out()
    world.ready("coordinator", "broker", "learner")
    for index in range(train):
        put(world, names.TRAINING_SET, index)
    for index in range(held_out):
        put(world, names.VALIDATION_SET, 10 + index)
    world.carry_out()
    return world


def put(world: World, which: str, index: int, *, ready: bool = True) -> None:
    pod = world.pod("rollout", index, phase="Running", conditions=[world.condition("Ready", ready)])
    pod["metadata"]["labels"][names.LABEL_SERVER_SET] = which


def role(world: World) -> Json:
    [found] = [role for role in world.body["status"]["roles"] if role["name"] == "rollout"]
    return dict(found)


@pytest.mark.parametrize("model", [{}, FULL, FROM_MEMORY])
def test_a_validation_server_has_an_address_of_its_own(model: Json) -> None:
    world = begun(rollout={"replicas": 3, "engine": {"tensorParallelSize": 2}}, **model)
    for name, which, replicas in ((TRAIN, "training", 3), (HELD_OUT, "validation", 1)):
        deployment, service = world.objects["Deployment", name], world.objects["Service", name]
        assert deployment["spec"]["replicas"] == replicas
        assert deployment["spec"]["selector"]["matchLabels"] == of_set(which)
        assert deployment["spec"]["template"]["metadata"]["labels"].items() >= of_set(which).items()
        assert (service["spec"]["clusterIP"], service["spec"]["selector"]) == ("None", of_set(which))
    for policy in ("refunds-rollout", "refunds-learner"):
        spec = world.objects["NetworkPolicy", policy]["spec"]
        every = [peer for rule in spec["ingress"] for peer in rule.get("from", [])]
        peers = [peer for peer in every if peer not in PLATFORM.metrics_from]
        chosen = [spec, *peers] if policy == "refunds-rollout" else peers
        labels = [each["podSelector"]["matchLabels"] for each in chosen]
        assert all(names.LABEL_SERVER_SET not in each for each in labels), "what holds of one holds of both"
    train, held_out = (world.objects["Deployment", name]["spec"]["template"] for name in (TRAIN, HELD_OUT))
    assert held_out["spec"] == train["spec"], "the same image, resources and settings"


def test_without_a_validation_server_labels_stay_the_same() -> None:
    shared = World(job(status=dict(PASSED)))
    shared.carry_out()
    assert shared.deployments() == {"refunds-broker", TRAIN}
    labels = shared.objects["Deployment", TRAIN]["spec"]["selector"]["matchLabels"]
    assert names.LABEL_SERVER_SET not in labels, "selectors of jobs that run cannot be changed"


def test_scaling_leaves_the_validation_server_alone() -> None:
    world = begun(rollout={"replicas": 2})
    world.body["spec"]["rollout"] = {"replicas": 5}
    wanted = {item.ref[2]: item.replicas for item in world.plan().wanted if item.ref[0] == "Deployment"}
    assert (wanted[TRAIN], wanted[HELD_OUT]) == (5, 1)


def test_the_scale_subresource_does_not_count_the_server() -> None:
    status = begun(train=2, rollout={"replicas": 2}).body["status"]
    assert status["rolloutReplicas"] == 2
    assert status["rolloutSelector"] == ",".join(sorted(f"{k}={v}" for k, v in of_set("training").items()))


def test_each_kind_of_server_needs_one_that_is_ready() -> None:
    world = begun(train=2, rollout={"replicas": 2})
    assert world.is_true("RolloutReady")
    assert (role(world)["desired"], role(world)["ready"]) == (3, 3)
    for train, held_out in ((0, 1), (2, 0)):
        short = begun(train=train, held_out=held_out, rollout={"replicas": 2})
        assert not short.is_true("RolloutReady")
        assert (role(short)["desired"], role(short)["ready"]) == (3, train + held_out)


def test_a_validation_server_without_a_node_fails_the_job() -> None:
    world = begun(held_out=0)
    words = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
    pod = world.unschedulable("rollout", words)
    pod["metadata"]["labels"][names.LABEL_SERVER_SET] = names.VALIDATION_SET
    put(world, names.TRAINING_SET, 3)
    world.carry_out()
    assert words in world.status_condition("RolloutReady")["message"]
    world.later(3601).carry_out()
    assert world.status_condition("Failed")["reason"] == "PendingDeadlineExceeded"
    assert words in world.status_condition("Failed")["message"]


def test_a_validation_server_comes_and_goes_with_the_job() -> None:
    world = World(job(**DEDICATED))
    world.carry_out()
    assert HELD_OUT not in world.deployments(), "none before the preflight"
    world = begun()
    world.body["spec"]["suspend"] = True
    world.carry_out()
    assert world.deployments() == set()
    assert ("Service", HELD_OUT) not in world.objects
    world.gone("coordinator", "broker", "learner", "rollout").carry_out()
    assert world.is_true("Suspended")
    world.body["spec"]["suspend"] = False
    world.carry_out()
    assert world.deployments() == {"refunds-broker", TRAIN, HELD_OUT}


def test_a_validation_server_counts_against_the_caps() -> None:
    world = World(job(**DEDICATED, rollout={"replicas": 64}))
    world.carry_out()
    words = "spec.rollout.replicas plus the server of spec.evaluation.servers: 65 is above"
    assert words in world.status_condition("Accepted")["message"]
    caps = World(job()).platform.caps.model_copy(update={"sandboxes": 100})
    at_once = {"maxConcurrency": 99, "replicas": 2}
    for spec, accepted in (({}, True), (DEDICATED, False)):
        world = World(job(rollout=at_once, **spec))
        world.platform = world.platform.model_copy(update={"caps": caps})
        world.carry_out()
        assert world.is_true("Accepted") is accepted, "50 sandboxes more: a server's share of 99"
