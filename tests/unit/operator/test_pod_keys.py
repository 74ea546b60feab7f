"""Which keys each pod of a job mounts: a table of roles and keys, compared with every planned pod."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from observed_cluster import PASSED, UID, World, evaluating, job

from headway_api import names
from headway_api.document import Json
from headway_operator.plan.context import Mode

TABLE = {
    names.COORDINATOR: {"learner-to-coordinator", "coordinator-to-rollout", "coordinator-to-broker"},
    names.LEARNER: {"learner-to-coordinator", "rollout-to-learner", "checkpoints"},
    names.ROLLOUT: {"coordinator-to-rollout", "rollout-to-learner"},
    names.BROKER: {"coordinator-to-broker", "leases"},
    names.SUITE_BROKER: {"coordinator-to-broker", "leases"},
}
SUITE = {"name": "sums", "image": "suite:1", "task": "sums.py@sums", "limit": 1}


def pods_of(world: World) -> list[tuple[str, Json]]:
    """Component and pod of every workload."""
    wanted = [item.body for item in world.plan().wanted if item.ref[0] in ("Job", "Deployment")]
    return [
        (body["metadata"]["labels"][names.LABEL_COMPONENT], body["spec"]["template"]["spec"])
        for body in wanted
    ]


def references(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every path below `value` at which a Secret is named."""
    if isinstance(value, dict):
        for key, below in value.items():
            if key in ("secret", "secretRef", "secretKeyRef", "secretName"):
                yield f"{path}.{key}", below
            else:
                yield from references(below, f"{path}.{key}")
    elif isinstance(value, list):
        for below in value:
            yield from references(below, path)


def worlds() -> dict[str, tuple[World, str]]:
    training = World(
        job(status=PASSED, evaluation={"servers": "Dedicated", "everySteps": 0, "atStart": False})
    )
    evaluation = evaluating(suites=[SUITE])
    return {"RLTrainingJob": (training, "refunds"), "RLEvalJob": (evaluation, "refunds-eval")}


@pytest.mark.parametrize("kind", ["RLTrainingJob", "RLEvalJob"])
def test_a_pod_mounts_only_the_keys_of_its_role(kind: str) -> None:
    world, stem = worlds()[kind]
    pods = pods_of(world)
    without = {names.SUITE_BROKER} if kind == "RLTrainingJob" else {names.LEARNER}
    assert {component for component, _ in pods} == TABLE.keys() - without
    for component, pod in pods:
        former, made = f"{stem}-token-{UID[:8]}", f"{stem}-keys-{UID[:8]}"
        found = dict(enumerate(source for _, source in references(pod)))
        assert [source["name"] for source in found.values()] == [made, former], component
        assert {item["key"] for item in found[0]["items"]} == TABLE[component]
        assert all(item["key"] == item["path"] for item in found[0]["items"])
        assert "optional" not in found[0], "without its keys no pod starts"


@pytest.mark.parametrize("kind", ["RLTrainingJob", "RLEvalJob"])
def test_keys_are_files_that_the_process_may_not_change(kind: str) -> None:
    world, _ = worlds()[kind]
    for component, pod in pods_of(world):
        (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "keys"]
        assert volume["projected"]["defaultMode"] == 0o440
        (container,) = pod["containers"]
        (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "keys"]
        assert mount == {"name": "keys", "mountPath": "/etc/headway-keys", "readOnly": True}, component


def test_an_older_jobs_token_is_mounted_if_it_exists() -> None:
    """No job that begins now has that Secret."""
    world, _ = worlds()["RLTrainingJob"]
    for _, pod in pods_of(world):
        former = [source for _, source in references(pod)][1]
        assert former["items"] == [{"key": "token", "path": "token"}]
        assert former["optional"] is True
    made = [item for item in world.plan().wanted if item.ref[0] == "Secret"]
    assert [(item.ref[2], item.mode) for item in made] == [(f"refunds-keys-{UID[:8]}", Mode.SECRET)]
