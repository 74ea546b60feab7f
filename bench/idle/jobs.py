"""Creates idle running jobs. Their pods exist only as objects of the API server, marked as ready."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from bench.idle.control_plane import ADMINISTRATOR as ADMIN
from bench.idle.control_plane import APPLY, ControlPlane, programs
from bench.support.machine import ROOT
from headway_api import names
from headway_api.document import Json

NAMESPACE = "bench"
JOBS = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/{names.PLURALS[names.TRAINING_KIND]}"
WORKLOADS = {
    "Job": f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs",
    "Deployment": f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments",
}
REPLICA_SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/replicasets"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
FIRST = (names.COORDINATOR, names.BROKER)
SECONDS = 180
"""Maximum seconds to wait until the operator has created a job's workloads or updated its state."""


def prepare(plane: ControlPlane) -> None:
    """Create the custom resource definitions and the namespace."""
    kubectl = [str(programs() / "kubectl"), f"--kubeconfig={plane.kubeconfig(ADMIN)}"]
    crds = str(ROOT / "crds")
    for command in (
        ["create", "namespace", NAMESPACE],
        ["apply", "--server-side", "-f", crds],
        ["wait", "--for=condition=Established", "--timeout=60s", "-f", crds],
    ):
        subprocess.run([*kubectl, *command], check=True, capture_output=True, timeout=120)


def name_of(number: int) -> str:
    """Name of idle job `number`."""
    return f"idle-{number:03d}"


def create(plane: ControlPlane, number: int) -> None:
    """Create a training job, as a user does."""
    rows = {"train": {"uri": "s3://bench/train.jsonl"}, "validation": {"uri": "s3://bench/val.jsonl"}}
    spec = {
        "model": {"base": "hf://Qwen/Qwen3-8B"},
        "data": rows,
        "environment": {"image": "registry.invalid/env:1", "entrypoint": "env:Env"},
        "output": {"uri": "s3://bench/runs"},
    }
    metadata = {"name": name_of(number), "namespace": NAMESPACE}
    body = {"apiVersion": names.API_VERSION, "kind": names.TRAINING_KIND, "metadata": metadata, "spec": spec}
    plane.call("POST", JOBS, body)


def set_to_work(plane: ControlPlane, numbers: range) -> None:
    """Create the jobs, let them pass their preflight, and make all their pods ready, until all jobs train."""
    for number in numbers:
        create(plane, number)
    _bring_up(plane, numbers, FIRST)
    for number in numbers:
        tell(plane, number, preflight={"state": "Passed"})
    _bring_up(plane, numbers, (names.LEARNER, names.ROLLOUT))
    progress = {"step": 3, "maxSteps": 100, "updatedTime": _now()}
    for number in numbers:
        tell(plane, number, preflight={"state": "Passed"}, progress=progress)
    _until(
        "jobs that train", lambda: _states(plane, numbers) == {"Training"}, lambda: _states(plane, numbers)
    )


def tell(plane: ControlPlane, number: int, **status: Any) -> None:
    """Write the coordinator's part of a job's status."""
    document = {
        "apiVersion": names.API_VERSION,
        "kind": names.TRAINING_KIND,
        "metadata": {"name": name_of(number), "namespace": NAMESPACE},
        "status": status,
    }
    query = f"?fieldManager={names.FIELD_MANAGER_COORDINATOR}&force=true"
    plane.call("PATCH", f"{JOBS}/{name_of(number)}/status{query}", document, APPLY)


def _states(plane: ControlPlane, numbers: range) -> set[str]:
    jobs = {job["metadata"]["name"]: job for job in plane.call("GET", JOBS)["items"]}
    return {jobs[name_of(number)].get("status", {}).get("state", "") for number in numbers}


def _bring_up(plane: ControlPlane, numbers: range, roles: tuple[str, ...]) -> None:
    """Wait for the workload of each role, and create a ready pod for it."""
    kind = {role: "Job" if role in (names.COORDINATOR, names.LEARNER) else "Deployment" for role in roles}
    left = {
        (kind[role], names.child(names.stem(names.TRAINING_KIND, name_of(n)), role))
        for n in numbers
        for role in roles
    }

    def step() -> bool:
        for each, path in WORKLOADS.items():
            for body in plane.call("GET", path)["items"]:
                key = each, body["metadata"]["name"]
                if key in left:
                    _pod(plane, body | {"kind": each})
                    left.discard(key)
        return not left

    _until("workloads of the jobs", step, lambda: sorted(left)[:4])


def _pod(plane: ControlPlane, workload: Json) -> None:
    owner, template = workload, workload["spec"]["template"]
    name = workload["metadata"]["name"]
    if workload["kind"] == "Deployment":
        spec = {"replicas": 1, "selector": workload["spec"]["selector"], "template": template}
        metadata = _metadata(f"{name}-1", workload, template)
        made = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec}
        owner = plane.call("POST", REPLICA_SETS, made) | {"kind": "ReplicaSet"}
    metadata = _metadata(f"{name}-1-a", owner, template)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    plane.call("POST", PODS, pod)
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": _now()}
    containers = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": container["image"],
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": _now()}},
        }
        for container in template["spec"]["containers"]
    ]
    status = {"phase": "Running", "conditions": [ready], "containerStatuses": containers}
    plane.call("PATCH", f"{PODS}/{name}-1-a/status", {"status": status}, "application/merge-patch+json")


def _metadata(name: str, owner: Json, template: Json) -> Json:
    reference = {
        "apiVersion": owner.get("apiVersion") or ("batch/v1" if owner["kind"] == "Job" else "apps/v1"),
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    labels = template["metadata"]["labels"]
    return {"name": name, "namespace": NAMESPACE, "labels": labels, "ownerReferences": [reference]}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _until(what: str, holds: Callable[[], bool], explain: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {SECONDS} s; {json.dumps(sorted(map(str, explain())))}")
        time.sleep(0.2)
