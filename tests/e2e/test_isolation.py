"""A sandbox in use reaches nothing and has no rights; its coordinator reaches it; every pod has limits.

Four pods try their targets at the same moment, while the engines are held so that no episode ends:

- a leased sandbox;
- two pods of the same image that no policy covers: they reach what a sandbox would reach without a policy;
- the job's coordinator.

`test_agents` inspects a sandbox with an agent in it.

A moment before, while the engines still answer, the two pods without a policy scrape a pod of each role. One
is a stranger. The other is in a namespace that the chart's `metricsFrom` names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from container_limits import pods_to_hold, unheld
from live_job import Sandbox, keys_in, look, pod_without_policy, pods, sandbox_in_use, scraped
from neighbours import Target, listening, targets
from outside_host import outside_host

from headway_api import names
from headway_api.keys import HELD_BY
from headway_demo.objects import read_group

RUN = uuid4().hex[:8]
"""A new name for each run: an earlier run's namespaces may still be terminating."""
STRANGERS, SCRAPERS = f"headway-e2e-strangers-{RUN}", f"headway-e2e-scrapers-{RUN}"
PORTS = {"operator": "http", "coordinator": "http", "broker": "http", "rollout": "metrics"}
"""Role -> the port that the chart's PodMonitors name."""
FAMILIES = {
    "operator": "headway_operator_leader",
    "coordinator": "headway_usage_cost_usd",
    "broker": "headway_sandbox_pool_size",
    "rollout": "vllm:num_requests_running",
}
"""Role -> one of the metric families that it serves."""
OUTSIDE = "outside/"

pytestmark = [pytest.mark.e2e, pytest.mark.ci, pytest.mark.timeout(1200)]


@dataclass(frozen=True)
class Scene:
    """What the four pods reached, and what was read from the cluster."""

    sandbox: Sandbox
    targets: dict[str, Target]
    inside: dict[str, Any]
    stranger: dict[str, Any]
    scraper: dict[str, Any]
    """What a pod reached in a namespace that may scrape metrics."""
    coordinator: dict[str, Any]
    everyone: list[dict[str, Any]]
    """Every pod of the cluster."""
    keys: dict[str, set[str]]
    """Role -> the keys in its pod."""
    ports: dict[str, int]
    """Role -> the port that serves its metrics."""
    scraped: dict[str, dict[str, Any]]
    """Namespace of the scraping pod -> role -> families of metrics, or None if it got no answer."""

    def of(self, *prefixes: str) -> set[str]:
        """Names of targets with one of these prefixes; each prefix has at least one target."""
        for prefix in prefixes:
            assert any(name.startswith(prefix) for name in self.targets), f"there is no {prefix} to reach"
        return {name for name in self.targets if name.startswith(prefixes)}


@pytest.fixture(scope="module")
def scene(bench: Any, shared_job: str) -> Iterator[Scene]:
    """A running job, and what four pods around it reach."""
    kube = bench.kube
    with ExitStack() as stack:
        outside = stack.enter_context(outside_host()) if os.geteuid() == 0 else None
        image = bench.platform.environment_image
        stranger, scraper = (
            stack.enter_context(pod_without_policy(kube, image, namespace, labels))
            for namespace, labels in ((STRANGERS, {}), (SCRAPERS, {"headway.dev/metrics": "enabled"}))
        )
        bench.wait_step(shared_job, 1)
        asked = {role: pods(kube, shared_job, role)[0] for role in PORTS}
        ports = {role: metrics_port(pod, role) for role, pod in asked.items()}
        urls = {role: f"http://{asked[role]['status']['podIP']}:{ports[role]}/metrics" for role in PORTS}
        with ThreadPoolExecutor() as threads:
            answers = threads.map(lambda pod: scraped(kube, pod, urls), (stranger, scraper))
            families = dict(zip((STRANGERS, SCRAPERS), answers, strict=True))
        with sandbox_in_use(kube, shared_job) as sandbox:
            found = targets(kube, sandbox.pod["metadata"]["name"])
            found |= listening(pods(kube, shared_job, "operator")[0])
            if outside:
                found[OUTSIDE] = ("tcp", *outside)
            places = (sandbox.pod, stranger, scraper, pods(kube, shared_job, "coordinator")[0])
            with ThreadPoolExecutor() as threads:
                looks = threads.map(lambda pod: look(kube, pod, found), places)
                inside, strange, scraping, coordinating = looks
            everyone = pods_to_hold(kube)
            looked_into = {role: pods(kube, shared_job, role)[0] for role in names.ROLES}
            looked_into[names.SANDBOX] = sandbox.pod
            held = {role: keys_in(kube, pod, role) for role, pod in looked_into.items()}
        yield Scene(sandbox, found, inside, strange, scraping, coordinating, everyone, held, ports, families)


def metrics_port(pod: dict[str, Any], role: str) -> int:
    """The port of a pod that the chart's PodMonitors name for its role."""
    ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", [])]
    [number] = [port["containerPort"] for port in ports if port.get("name") == PORTS[role]]
    return int(number)


def test_without_a_policy_the_same_look_finds_the_cluster(scene: Scene) -> None:
    assert scene.stranger["resolves"]
    open_to_all = scene.of(
        "dns/", "api/", "kubelet/", "objects/", "mlflow/", "service/objects", "service/mlflow"
    )
    assert open_to_all <= set(scene.stranger["reached"])


def test_a_sandbox_reaches_nothing(scene: Scene) -> None:
    assert scene.inside["lease"] == scene.sandbox.episode, (
        "the sandbox changed hands while it was looked into"
    )
    scene.of("coordinator/", "broker/", "rollout/", "learner/", "sandbox/", "objects/", "mlflow/")
    assert scene.inside["reached"] == []
    assert not scene.inside["resolves"]


@pytest.mark.skipif(os.geteuid() != 0, reason="a host outside the cluster is made with root's rights")
def test_a_sandbox_reaches_no_address_outside_the_cluster(scene: Scene) -> None:
    assert OUTSIDE in scene.stranger["reached"], "the host outside was not there for anyone"
    assert OUTSIDE not in scene.inside["reached"]


def test_strangers_reach_nothing_of_the_job(scene: Scene) -> None:
    own = scene.of("operator/", "coordinator/", "broker/", "rollout/", "learner/", "sandbox/")
    assert not own & set(scene.stranger["reached"])


def test_a_pod_in_a_scraping_namespace_gets_every_roles_metrics(scene: Scene) -> None:
    found = scene.scraped[SCRAPERS]
    assert {role: FAMILIES[role] in (found[role] or ()) for role in FAMILIES} == dict.fromkeys(FAMILIES, True)


def test_a_pod_of_another_namespace_gets_no_roles_metrics(scene: Scene) -> None:
    assert scene.scraped[STRANGERS] == dict.fromkeys(FAMILIES)


def test_a_scraper_reaches_only_the_ports_for_scrapers(scene: Scene) -> None:
    own = scene.of("operator/", "coordinator/", "broker/", "rollout/", "learner/", "sandbox/")
    ports = {(role, str(port)) for role, port in scene.ports.items()}
    assert own & set(scene.scraper["reached"]) == {
        name for name in own if (name.partition("/")[0], name.rpartition(":")[2]) in ports
    }


def test_the_coordinator_reaches_sandboxes_broker_and_engines(scene: Scene) -> None:
    reached = set(scene.coordinator["reached"])
    assert scene.of("broker/", "rollout/") <= reached
    assert scene.of("sandbox/") & reached, "others may be starting or going"


def test_a_sandbox_holds_no_rights_and_no_credentials(scene: Scene) -> None:
    assert scene.inside["rights"] == {
        "Uid": "65532 65532 65532 65532",
        "Gid": "65532 65532 65532 65532",
        **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16),
        "NoNewPrivs": "1",
        "Seccomp": "2",
    }
    assert scene.inside["read_only_root"]
    assert scene.inside["writable"] == []
    assert scene.inside["readable"] == [], "the server hides before anything of the image runs"
    assert not [place for place in scene.inside["mounts"] if "secrets" in place]
    assert [place for place in scene.stranger["mounts"] if "secrets" in place], "a token would look otherwise"
    named = [name for name in scene.inside["environment"] if name.startswith(("AWS_", "HEADWAY_"))]
    assert named == ["HEADWAY_ENTRYPOINT", "HEADWAY_ENVIRONMENT_CONFIG"]
    assert scene.sandbox.pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_a_pod_holds_only_the_keys_of_its_role(scene: Scene) -> None:
    assert scene.keys == {role: {key.value for key in HELD_BY[role]} for role in names.ROLES}


def test_every_container_has_resource_requests_and_limits(scene: Scene) -> None:
    labels = [pod["metadata"].get("labels", {}) for pod in scene.everyone]
    roles = {found.get("app.kubernetes.io/component") or found.get("app") for found in labels}
    assert {"operator", "objects", "mlflow"} <= roles
    assert {"coordinator", "broker", "learner", "rollout", "sandbox"} <= roles
    assert unheld(scene.everyone) == []


def test_the_inspected_sandboxs_episode_and_its_job_succeed(
    bench: Any, shared_job: str, scene: Scene, tmp_path: Path
) -> None:
    bench.wait_condition(shared_job, "Complete", deadline_s=300)
    with bench.platform.bucket() as bucket:
        bucket.download(bench.get(shared_job)["status"]["artifacts"]["trajectories"], tmp_path)
    groups = [read_group(path) for path in tmp_path.rglob("*.json.gz")]
    outcomes = {e["episode_id"]: e["outcome"] for group in groups for e in group["episodes"]}
    assert outcomes[scene.sandbox.episode] in ("Completed", "Truncated")
