"""Objects as an API server would show them, for tests of the operator's planner."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from headway_api import names
from headway_api.document import Json
from headway_api.exits import PERMANENT, Termination
from headway_api.spec.budget import RLBudget
from headway_operator.config import Images, OperatorConfig
from headway_operator.plan import planner
from headway_operator.plan.job_kinds import job_kind_of
from headway_operator.plan.observed import Observed, role_of
from headway_operator.plan.reading import parse_status

UID = "0b5e8a1c-1111-2222-3333-444455556666"
START = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
IMAGE = "registry.test/image:1"
PLATFORM = OperatorConfig(images=Images(coordinator=IMAGE, broker=IMAGE, learner=IMAGE, rollout=IMAGE))


def stamp(moment: datetime) -> str:
    """A time in Kubernetes' format."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def job(name: str = "refunds", *, status: Json | None = None, **spec: Any) -> Json:
    """A small job without warnings; `spec` replaces whole blocks."""
    smallest: Json = {
        "model": {"base": "hf://Qwen/Qwen3-8B"},
        "data": {"train": {"uri": "s3://b/train.jsonl"}, "validation": {"uri": "s3://b/val.jsonl"}},
        "environment": {"image": "registry.test/env:1", "entrypoint": "env:Env"},
        "agent": {"builtin": {"maxTurns": 8}},
        "output": {"uri": "s3://b/runs"},
    }
    metadata = {
        "name": name,
        "namespace": "team",
        "uid": UID,
        "generation": 1,
        "resourceVersion": "1",
        "creationTimestamp": stamp(START),
    }
    body: Json = {"apiVersion": names.API_VERSION, "kind": "RLTrainingJob", "metadata": metadata}
    body["spec"] = smallest | spec
    body["status"] = status or {}
    return copy.deepcopy(body)


def eval_job(name: str = "refunds", *, status: Json | None = None, **spec: Any) -> Json:
    """A small evaluation of one model; `spec` replaces whole blocks."""
    body = job(name, status=status)
    smallest: Json = {
        "candidates": [{"name": "base", "model": {"base": "hf://Qwen/Qwen3-8B"}}],
        "data": {"uri": "s3://b/test.jsonl"},
        "environment": {"image": "registry.test/env:1", "entrypoint": "env:Env"},
        "output": {"uri": "s3://b/runs"},
    }
    return body | {"kind": "RLEvalJob", "spec": copy.deepcopy(smallest | spec)}


FROM_MEMORY: Json = {
    "model": {"base": "hf://Qwen/Qwen3-8B", "full": {}},
    "learner": {"weights": {"backend": "nccl"}},
}
"""Blocks of a job whose servers read weights from the learner's memory."""
SANDBOXED: Json = {"sandboxed": {"command": ["python3", "agent.py"]}}
"""An agent that runs in the sandbox."""
PASSED: Json = {"preflight": {"state": "Passed", "checks": []}}


class World:
    """One job and its children. Time passes only when a test calls `later`."""

    def __init__(self, body: Json, platform: OperatorConfig = PLATFORM) -> None:
        self.body = body
        self.platform = platform
        self.now = START
        self.objects: dict[tuple[str, str], Json] = {}
        self.refusals: dict[str, str] = {}
        self.others: list[Json] = []
        """Training jobs of the same namespace."""
        self.namespace_ends = False
        self.budget: Json | None = None
        """The RLBudget of the namespace."""

    def later(self, seconds: float) -> World:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)
        return self

    def plan(self) -> planner.Plan:
        """The plan for the current objects."""
        objects = tuple(self.objects.values())
        seen = Observed(self.now, objects, self.refusals, self._sources(), self.namespace_ends)
        if self.budget is not None:
            seen = replace(seen, budget=RLBudget.model_validate(self.budget))
        return planner.make(self.body, self.platform, seen)

    def _sources(self) -> dict[str, Json]:
        known = {job["metadata"]["name"]: job for job in self.others}
        return {name: known[name] for name in planner.sources(self.body) if name in known}

    def carry_out(self) -> planner.Plan:
        """Make a plan and carry it out, as an API server without controllers would; returns the plan."""
        made = self.plan()
        if made.finalizer is not None:
            self.body["metadata"]["finalizers"] = [names.FINALIZER_TEARDOWN] if made.finalizer else []
        for to_delete in made.to_delete:
            self.objects.pop((to_delete["kind"], to_delete["metadata"]["name"]), None)
        for item in made.wanted:
            if item.ref[0] != "Secret":
                self._put(item.body)
        if made.status is not None:
            self.body["status"] = self._applied(made.status.as_object())
        return made

    def _applied(self, written: Json) -> Json:
        """The status after server-side apply of the operator's part. The coordinator's conditions stay."""
        stored = self.body["status"]
        kind = job_kind_of(self.body)
        known_status = parse_status(kind.model, {"status": stored})
        part = kind.own_part(known_status)
        gone = part.as_object().keys() - written.keys()  # fields that it no longer writes are removed
        stored = {key: value for key, value in stored.items() if key not in gone}
        own = {known.type for known in part.conditions}
        own |= {known["type"] for known in written["conditions"]}
        others = [known for known in stored.get("conditions", []) if known["type"] not in own]
        return stored | written | {"conditions": [*written["conditions"], *others]}

    @property
    def stem(self) -> str:
        """Prefix of the names of the job's objects."""
        return names.stem(self.body["kind"], self.body["metadata"]["name"])

    @property
    def has_finalizer(self) -> bool:
        """Whether the job has the finalizer of its teardown."""
        return names.FINALIZER_TEARDOWN in self.body["metadata"].get("finalizers", [])

    def deleted(self) -> World:
        """Mark the job as deleted, as `kubectl delete` does."""
        self.body["metadata"]["deletionTimestamp"] = stamp(self.now)
        return self

    def gone(self, *roles: str) -> World:
        """Remove the pods of these roles."""
        for key in [key for key, body in self.objects.items() if key[0] == "Pod" and role_of(body) in roles]:
            del self.objects[key]
        return self

    def ending(self, role: str, grace: float = 30) -> Json:
        """Add a pod of a role that is being deleted, with `grace` seconds left to end."""
        pod = self.pod(role, phase="Running", conditions=[self.condition("Ready", True)])
        pod["metadata"]["deletionTimestamp"] = stamp(self.now + timedelta(seconds=grace))
        return pod

    def _put(self, wanted: Json) -> None:
        key = (wanted["kind"], wanted["metadata"]["name"])
        known = self.objects.get(key)
        if known is None:
            metadata = {"uid": "-".join(key), "creationTimestamp": stamp(self.now), "resourceVersion": "1"}
            wanted = copy.deepcopy(wanted)
            self.objects[key] = wanted | {"metadata": wanted["metadata"] | metadata}

    def pod(self, role: str, index: int = 0, **status: Any) -> Json:
        """Add a pod of a role. It replaces the pod with the same index."""
        name = f"{self.stem}-{role}-{index}"
        metadata = {
            "name": name,
            "namespace": "team",
            "uid": name,
            "creationTimestamp": stamp(self.now),
            "resourceVersion": "1",
            "labels": names.job_labels(self.body["kind"], self.body["metadata"]["name"], UID, role),
        }
        known = self.objects.get(("Pod", name))
        if known:
            metadata = known["metadata"]
        limits = {"limits": {"memory": "1Gi"}}
        spec = {"containers": [{"name": role, "resources": limits}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}
        self.objects["Pod", name] = pod
        return pod

    def server(self, number: int, index: int = 0, **status: Any) -> Json:
        """Add a rollout server of a set, by default a ready one."""
        status = status or {"phase": "Running", "conditions": [self.condition("Ready", True)]}
        pod = self.pod(names.ROLLOUT, 10 * number + index, **status)
        pod["metadata"]["labels"][names.LABEL_SERVER_SET] = str(number)
        return pod

    def wants_sets(self, *numbers: int) -> World:
        """Let the coordinator list the sets of servers that it needs."""
        self.body["status"]["progress"] = {"groups": 0, "serverSets": [*numbers]}
        return self

    def deployments(self) -> set[str]:
        """Names of the existing Deployments."""
        return {name for kind, name in self.objects if kind == "Deployment"}

    def ready(self, *roles: str) -> World:
        """Add a ready pod of each role."""
        for role in roles:
            self.pod(role, phase="Running", conditions=[self.condition("Ready", True)])
        return self

    def starting(self, role: str, index: int = 0) -> Json:
        """Add a pod that runs and is not ready."""
        return self.pod(role, index, phase="Running", conditions=[self.condition("Ready", False)])

    def waiting(self, role: str, reason: str, message: str, **container: Any) -> Json:
        """Add a pod whose container cannot start."""
        state = {"waiting": {"reason": reason, "message": message}}
        status = {"name": role, "state": state, "ready": False, "restartCount": 0} | container
        return self.pod(
            role, phase="Pending", conditions=[self.condition("Ready", False)], containerStatuses=[status]
        )

    def unschedulable(self, role: str, message: str) -> Json:
        """Add a pod that fits no node."""
        scheduled = self.condition("PodScheduled", False) | {"reason": "Unschedulable", "message": message}
        return self.pod(role, phase="Pending", conditions=[scheduled])

    def died(self, role: str, code: int, message: str = "", reason: str = "Error") -> Json:
        """Add a failed pod of a Job."""
        ended = {"exitCode": code, "reason": reason, "message": message}
        status = {"name": role, "state": {"terminated": ended}, "ready": False, "restartCount": 0}
        return self.pod(role, phase="Failed", containerStatuses=[status])

    def gave_up(self, role: str, reason: str, message: str, field: str | None = None) -> Json:
        """Add a failed pod whose process said in its termination message why it cannot continue."""
        words = Termination(reason=reason, message=message, field=field).model_dump_json()
        return self.died(role, PERMANENT, words)

    def workload_status(self, kind: str, role: str, **status: Any) -> World:
        """Set the status of a role's Job or Deployment."""
        self.objects[kind, f"{self.stem}-{role}"]["status"] = status
        return self

    def condition(self, kind: str, true: bool) -> Json:
        """A condition whose last transition is now."""
        status = "True" if true else "False"
        return {"type": kind, "status": status, "lastTransitionTime": stamp(self.now)}

    def status_condition(self, kind: str) -> Json:
        """A condition of the job's status."""
        return next(c for c in self.body["status"]["conditions"] if c["type"] == kind)

    def is_true(self, kind: str) -> bool:
        """Whether a condition of the job is true."""
        return any(c["type"] == kind and c["status"] == "True" for c in self.body["status"]["conditions"])


def running(**spec: Any) -> World:
    """A job whose every role runs."""
    world = World(job(status=copy.deepcopy(PASSED), **spec))
    world.carry_out()
    world.ready(*names.ROLES[:4])
    world.carry_out()
    return world


def chosen(*others: Json, **spec: Any) -> World:
    """An evaluation whose candidates have been chosen, with the objects that come before the preflight."""
    world = World(eval_job(**spec))
    world.others = [*others]
    world.carry_out()
    world.carry_out()
    return world


def evaluating(*others: Json, sets: tuple[int, ...] = (0,), **spec: Any) -> World:
    """A running evaluation: its preflight has passed, and a server of each of `sets` is ready."""
    world = chosen(*others, **spec)
    world.body["status"] |= copy.deepcopy(PASSED)
    world.wants_sets(*sets)
    world.carry_out()
    world.ready("coordinator", "broker")
    for number in sets:
        world.server(number)
    world.carry_out()
    return world
