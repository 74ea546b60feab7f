"""Jobs with a fault run together. The sum of their requests fits on a node of two cores."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[3] / "hack" / "demo"))

from provoked import PROVOKED
from provoked.provocation import EVALUATED, SMALL, Provocation, merged
from provoked.resources import Resources, asked, left, of_a_job, resources_of
from provoked.rig import ASKED, AT_ONCE

from headway_api.names import TRAINING_KIND
from headway_demo.images import RESOURCES

ROOT = Path(__file__).resolve().parents[3]
NODE = {"status": {"allocatable": {"cpu": "2", "memory": "20Gi"}}}
FOR_NO_NODE = {"too-large-for-any-node", "sandboxes-beyond-quota", "no-memory-left"}
"""These jobs request more, but the pods with these requests never reach a node."""


def of_container(**requests: str) -> dict[str, Any]:
    return {"resources": {"requests": requests}}


def platform() -> Iterator[Resources]:
    """Requests of the platform's pods, which run on the node before any job."""
    for name in ("hack/cluster/manifests/dns.yaml", "hack/demo/manifests/objects.yaml"):
        yield from manifest(ROOT / name)
    yield from manifest(ROOT / "hack/demo/manifests/mlflow.yaml")
    values = yaml.safe_load((ROOT / "charts/headway/values.yaml").read_text())
    yield resources_of(values["operator"]["resources"]["requests"])


def manifest(path: Path) -> Iterator[Resources]:
    """Requests of each Deployment of a manifest."""
    for document in yaml.safe_load_all(path.read_text()):
        if document["kind"] == "Deployment":
            yield asked(document["spec"]["template"]["spec"])


def test_all_jobs_together_fit_two_cores_beside_the_platform() -> None:
    runs = list(platform())
    assert len(runs) == 4
    assert all(each.cpu for each in runs)
    free = resources_of(NODE["status"]["allocatable"]) - sum(runs, Resources())
    assert free.holds(ASKED * AT_ONCE), f"{free} left, {ASKED * AT_ONCE} asked for"


@pytest.mark.parametrize("name", sorted(PROVOKED.keys() - FOR_NO_NODE))
def test_no_job_asks_for_more_than_is_counted(name: str) -> None:
    how: Provocation = PROVOKED[name]
    trains = how.kind == TRAINING_KIND
    roles = {role: RESOURCES[role] for role in RESOURCES if trains or role != "learner"}
    found = of_a_job(merged(SMALL if trains else EVALUATED, how.changes), roles)
    assert ASKED.holds(found), f"{found}, not {ASKED}"


def test_a_job_asks_for_its_five_roles_and_every_sandbox() -> None:
    defaults = {role: of_container(cpu="100m", memory="1Gi")["resources"] for role in RESOURCES}
    spec = {
        "environment": {"sandbox": {"warmPool": {"max": 3}}},
        "learner": {"resources": {"limits": {"memory": "2Gi"}}},
        "rollout": {"resources": {"requests": {"cpu": "20m"}, "limits": {"cpu": "2"}}},
    }
    assert of_a_job(spec, defaults) == resources_of({"cpu": "620m", "memory": "8Gi"})


def test_a_pod_requests_its_containers_or_largest_init_container() -> None:
    small, large = of_container(cpu="10m", memory="8Mi"), of_container(cpu="30m", memory="1Mi")
    beside = small | {"restartPolicy": "Always"}
    assert asked({"containers": [small, small]}) == resources_of({"cpu": "20m", "memory": "16Mi"})
    assert asked({"containers": [small], "initContainers": [large]}) == resources_of(
        {"cpu": "30m", "memory": "8Mi"}
    )
    assert asked({"containers": [small], "initContainers": [beside]}) == resources_of(
        {"cpu": "20m", "memory": "16Mi"}
    )


def test_an_ended_pod_frees_its_room_and_a_waiting_pod_does_not() -> None:
    spec = {"containers": [of_container(cpu="500m", memory="1Gi")]}
    pods = [
        {"spec": spec, "status": {"phase": phase}} for phase in ("Pending", "Running", "Succeeded", "Failed")
    ]
    assert left(NODE, pods) == resources_of({"cpu": "1", "memory": "18Gi"})
