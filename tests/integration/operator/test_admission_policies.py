"""The chart's policies on a real API server: who may create which pods and write which part of a job."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Iterator
from typing import Any, Protocol

import pytest
from operator_rig import IMAGE, SMALL, Rig, wait

from headway_api import names
from headway_api.config import JobConfig
from headway_api.document import Json
from headway_sandbox.broker import pods

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(300)]


class Cluster(Protocol):
    """The methods of the cluster fixture that these tests use."""

    def attempt(self, *arguments: str, input: str | None = None) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture(scope="module")
def guarded(house: Rig) -> Iterator[Rig]:
    """The namespace with the chart's policies, and an account that may create pods and Jobs."""
    made = house.rendered("admission.yaml")
    house.cluster.kubectl("apply", "-f", "-", input=made)
    where = ("-n", house.namespace)
    house.cluster.kubectl("create", "serviceaccount", "stranger", *where)
    rights = ("--verb=create,get,update,patch", "--resource=pods,jobs.batch,deployments.apps")
    house.cluster.kubectl("create", "role", "stranger", *where, *rights)
    house.cluster.kubectl(
        "create", "rolebinding", "stranger", *where, "--role=stranger",
        f"--serviceaccount={house.namespace}:stranger",
    )  # fmt: skip
    try:
        labelled = plain(house, "probe", {"headway.dev/job-uid": "x"})
        wait("the policies to act", lambda: "labels of headway.dev/" in tried(house, "stranger", labelled))
        yield house
    finally:
        house.cluster.kubectl("delete", "-f", "-", "--ignore-not-found", input=made)


@pytest.fixture
def rig(guarded: Rig) -> Iterator[Rig]:
    """The guarded namespace, without jobs before and after each test."""
    guarded.scripts, guarded.settings = {}, {}
    yield guarded
    guarded.clean()


def tried(rig: Rig, account: str, body: Json, *, verb: str = "create", options: tuple[str, ...] = ()) -> str:
    """The API server's refusal of this object from an account, or "" if it accepts it. Nothing is changed."""
    cluster: Cluster = rig.cluster  # type: ignore[assignment]
    user = f"--as=system:serviceaccount:{rig.namespace}:{account}"
    done = cluster.attempt(verb, "-f", "-", user, "--dry-run=server", *options, input=json.dumps(body))
    return done.stderr if done.returncode else ""


def plain(rig: Rig, name: str, labels: Json) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": rig.namespace, "labels": labels},
        "spec": {"containers": [{"name": "c", "image": IMAGE, "resources": SMALL}]},
    }


def sandbox(rig: Rig, job: str) -> Json:
    """A pod exactly as the job's broker makes it."""
    config = json.loads(rig.children(job)[f"ConfigMap/{job}-config"]["data"]["job.json"])
    kind = pods.SandboxKind(JobConfig.model_validate(config))
    return pods.manifest(kind, pods.Platform({}, {}, []), f"{job}-sandbox-1")


def changed(pod: Json, path: str, value: Any) -> Json:
    """A copy with one field set. `path` is dotted, with numbers for positions in a list."""
    made = copy.deepcopy(pod)
    *parents, last = path.split(".")
    place: Any = made
    for key in parents:
        place = place[int(key)] if isinstance(place, list) else place.setdefault(key, {})
    place[last] = value
    return made


ELSEWHERE = {"host": "169.254.169.254", "port": 80}
SECRET = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}}]
RUNTIME_CLASSES = "\n---\n".join(
    json.dumps(
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": "x"}
    )
    for name in ("walled.x", "open")
)
TAKEN_OVER = [
    ("spec.volumes", [{"name": "root", "hostPath": {"path": "/"}}], "spec.volumes"),
    ("spec.volumes", [{"name": "keys", "secret": {"secretName": "keys"}}], "spec.volumes"),
    ("spec.volumes", [{"name": "t", "projected": {"sources": []}}], "spec.volumes"),
    ("spec.serviceAccountName", "meek-coordinator", "spec.serviceAccountName"),
    ("spec.automountServiceAccountToken", True, "spec.serviceAccountName"),
    ("spec.hostNetwork", True, "spec: a sandbox has no share in its node"),
    ("spec.hostPID", True, "spec: a sandbox has no share in its node"),
    ("spec.hostUsers", True, "spec: the scheduler places a sandbox"),
    ("spec.nodeName", "node", "spec: the scheduler places a sandbox"),
    ("spec.priorityClassName", "system-node-critical", "spec: the scheduler places a sandbox"),
    ("spec.containers.0.livenessProbe", {"httpGet": ELSEWHERE}, "the kubelet probes"),
    ("spec.containers.0.readinessProbe", {"tcpSocket": ELSEWHERE}, "the kubelet probes"),
    ("spec.containers.0.startupProbe", {"httpGet": ELSEWHERE}, "the kubelet probes"),
    ("spec.containers.0.lifecycle.preStop", {"httpGet": ELSEWHERE}, "the kubelet probes"),
    ("spec.containers.0.lifecycle.postStart", {"tcpSocket": ELSEWHERE}, "the kubelet probes"),
    (
        "spec.securityContext.seccompProfile",
        {"type": "Unconfined"},
        "spec.securityContext: a sandbox runs un",
    ),
    ("spec.securityContext", {"runAsNonRoot": True}, "spec.securityContext: a sandbox runs under"),
    (
        "spec.securityContext.appArmorProfile",
        {"type": "Unconfined"},
        "spec.securityContext: a sandbox runs un",
    ),
    (
        "spec.containers.0.securityContext.seccompProfile",
        {"type": "Unconfined"},
        "spec.securityContext: a sandbox runs under",
    ),
    (
        "metadata.annotations",
        {"container.apparmor.security.beta.kubernetes.io/sandbox": "unconfined"},
        "spec.securityContext: a sandbox runs under",
    ),
    ("spec.containers.0.env", SECRET, "spec.containers"),
    ("spec.containers.0.envFrom", [{"secretRef": {"name": "keys"}}], "spec.containers"),
    ("spec.containers.0.securityContext", {"privileged": True}, "spec.securityContext"),
    ("spec.securityContext", {"runAsUser": 0}, "spec.securityContext"),
    ("metadata.ownerReferences", [], "metadata.ownerReferences"),
    ("metadata.ownerReferences.0.name", "other", "metadata.ownerReferences"),
    ("metadata.ownerReferences.0.uid", "someone-elses", "metadata.ownerReferences"),
    ("metadata.labels", {}, "metadata.ownerReferences"),
    ("metadata.labels", {"headway.dev/job-uid": "UID"}, "metadata.labels"),
]


@pytest.mark.hostile
def test_a_broker_makes_sandboxes_of_its_own_job_alone(rig: Rig) -> None:
    rig.start()
    rig.apply("meek")
    rig.first_pods("meek")
    own = sandbox(rig, "meek")
    assert tried(rig, "meek-broker", own) == ""
    for path, value, message in TAKEN_OVER:
        if value == {"headway.dev/job-uid": "UID"}:
            value = {"headway.dev/job-uid": rig.get("meek")["metadata"]["uid"]}
        answer = tried(rig, "meek-broker", changed(own, path, value))
        assert message in answer, f"{path}={value}: {answer or 'accepted'}"
    assert "sandbox" in tried(rig, "meek-broker", plain(rig, "any", {}))


def test_a_broker_names_only_the_uid_of_its_job(rig: Rig) -> None:
    """A pod whose controller has another job's uid would be that job's sandbox."""
    rig.start()
    for name in ("meek", "other"):
        rig.apply(name)
        rig.first_pods(name)
    uids = {name: rig.get(name)["metadata"]["uid"] for name in ("meek", "other")}
    for uid, message in (
        (uids["meek"], ""),
        (uids["other"], "write the uid of that job"),
        ("x", "write the uid"),
    ):
        labels = {**sandbox(rig, "meek")["metadata"]["labels"], "headway.dev/job-uid": uid}
        pod = changed(sandbox(rig, "meek"), "metadata.ownerReferences.0.uid", uid)
        answer = tried(rig, "meek-broker", changed(pod, "metadata.labels", labels))
        assert message in answer, f"{uid}: {answer or 'accepted'}"
        assert bool(answer) is bool(message), answer


def test_a_sandbox_has_the_runtime_class_of_its_job(rig: Rig) -> None:
    rig.cluster.kubectl("apply", "-f", "-", input=RUNTIME_CLASSES)
    rig.start()
    environment = {"image": IMAGE, "entrypoint": "a:B", "sandbox": {"runtimeClassName": "walled.x"}}
    rig.apply("walled", environment=environment)
    rig.first_pods("walled")
    own = sandbox(rig, "walled")
    assert own["spec"].get("runtimeClassName") == "walled.x", rig.get("walled")
    assert tried(rig, "walled-broker", own) == ""
    without = {**own, "spec": {key: value for key, value in own["spec"].items() if key != "runtimeClassName"}}
    for pod in (without, changed(own, "spec.runtimeClassName", "open")):
        assert "of the runtimeClassName that the job asks for" in tried(rig, "walled-broker", pod)
    rig.cluster.kubectl("delete", "-f", "-", input=RUNTIME_CLASSES)


def test_a_job_is_run_under_the_policies(rig: Rig) -> None:
    restricted = "pod-security.kubernetes.io/enforce=restricted"
    rig.cluster.kubectl("label", "namespace", rig.namespace, restricted)
    rig.start()
    rig.run("guarded")
    assert tried(rig, "guarded-broker", sandbox(rig, "guarded")) == ""
    rig.patch("guarded", {"rollout": {"replicas": 2}})
    wait("two servers", lambda: len(rig.pods("guarded", "rollout")) == 2, explain=rig.log)
    rig.delete("guarded")
    rig.cluster.kubectl("label", "namespace", rig.namespace, restricted.replace("=restricted", "-"))
    assert not rig.children("guarded")


def workload(rig: Rig, api: str, kind: str, labels: Json) -> Json:
    template = {
        "metadata": {"labels": {"app": "x"} | labels},
        "spec": plain(rig, "x", {})["spec"] | {"restartPolicy": "Never" if kind == "Job" else "Always"},
    }
    spec: Json = {"template": template}
    if kind == "Deployment":
        spec["selector"] = {"matchLabels": {"app": "x"}}
    metadata = {"name": "x", "namespace": rig.namespace}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("label", ["headway.dev/job-uid", "headway.dev/anything"])
def test_labels_of_the_platform_are_refused_to_others(rig: Rig, label: str) -> None:
    refused = "labels of headway.dev/ are for pods of Headway's jobs; use another prefix"
    for body in (
        plain(rig, "x", {label: "y"}),
        workload(rig, "batch/v1", "Job", {label: "y"}),
        workload(rig, "apps/v1", "Deployment", {label: "y"}),
    ):
        assert refused in tried(rig, "stranger", body), body["kind"]


def test_objects_without_such_labels_are_allowed(rig: Rig) -> None:
    labels = {"headway.development/x": "y", "app": "x"}
    for body in (
        plain(rig, "x", labels),
        plain(rig, "x", {}),
        workload(rig, "batch/v1", "Job", labels),
        workload(rig, "apps/v1", "Deployment", labels),
    ):
        assert tried(rig, "stranger", body) == "", body["kind"]


def test_a_coordinator_writes_the_status_of_its_own_job_alone(rig: Rig) -> None:
    rig.start()
    for name in ("mine", "other"):
        rig.apply(name)
        rig.first_pods(name)
    options = ("--server-side", "--subresource=status", "--field-manager=headway-coordinator")
    for name, message in (("mine", ""), ("other", "the job's own coordinator alone may write it")):
        job = rig.job(name)
        body = {key: job[key] for key in ("apiVersion", "kind", "metadata")} | {
            "status": {"progress": {"step": 1}}
        }
        answer = tried(rig, "mine-coordinator", body, verb="apply", options=options)
        assert message in answer
        assert bool(answer) is bool(message)


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = {"a": value} if (levels - level) % 2 else [value]
    return value


def suite(**fields: Any) -> Json:
    return {"suites": [{"name": "s", "image": "i", "task": "a/b", "limit": 1, **fields}]}


FREE = {
    "spec.environment.contract": lambda value: {
        "environment": {"image": "i", "entrypoint": "a:B", "contract": value}
    },
    "spec.suites[].args": lambda value: suite(args=value),
    "spec.suites[].sandbox.podTemplate": lambda value: suite(
        sandbox={"podTemplate": {"spec": {"affinity": value}}}
    ),
    "spec.environment.config": lambda value: {
        "environment": {"image": "i", "entrypoint": "a:B", "config": value}
    },
    "spec.learner.podTemplate": lambda value: {"learner": {"podTemplate": {"spec": {"affinity": value}}}},
    "spec.rollout.podTemplate": lambda value: {"rollout": {"podTemplate": {"spec": {"affinity": value}}}},
    "spec.environment.sandbox.podTemplate": lambda value: {
        "environment": {
            "image": "i",
            "entrypoint": "a:B",
            "sandbox": {"podTemplate": {"spec": {"affinity": value}}},
        }
    },
}


@pytest.mark.parametrize("field", FREE)
def test_an_object_nested_too_deep_is_refused_at_apply(rig: Rig, field: str) -> None:
    cluster: Cluster = rig.cluster  # type: ignore[assignment]
    above = 2 if field.endswith("podTemplate") else 0
    of = rig.evaluations if "suites" in field else rig
    for levels, message in ((16, ""), (18, f"{field}: nested more than 16 levels deep"), (200, field)):
        body = of.job("nested", **FREE[field](nested(levels - above)))
        done = cluster.attempt("create", "-f", "-", "--dry-run=server", input=json.dumps(body))
        assert (message in done.stderr and bool(message)) is bool(done.returncode), done.stderr
        assert bool(done.returncode) is bool(message), f"{levels}: {done.stderr}"


def test_names_of_the_accounts_are_those_that_the_policies_know() -> None:
    """The names in the chart are written by hand."""
    assert names.child("job", names.BROKER) == "job-broker"
    assert names.child(names.stem(names.EVAL_KIND, "job"), names.COORDINATOR) == "job-eval-coordinator"
    assert names.child("job", names.SANDBOX) == "job-sandbox"
