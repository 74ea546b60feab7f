"""The planner's view of the cluster: objects as the API server returned them, and the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Literal

from headway_api import names
from headway_api.document import Json
from headway_api.failures import Failures
from headway_api.spec.budget import RLBudget

WORKLOADS = {
    names.COORDINATOR: "Job",
    names.BROKER: "Deployment",
    names.SUITE_BROKER: "Deployment",
    names.LEARNER: "Job",
    names.ROLLOUT: "Deployment",
    names.JUDGE: "Deployment",
}


POD_CREATION_SECONDS: Final = 3.0
"""Seconds after a Job's creation within which its pods should exist."""


@dataclass(frozen=True)
class Observed:
    """A job's children at one moment."""

    now: datetime
    objects: tuple[Json, ...] = ()
    """All objects of the job (`children.of`). Kinds whose content nobody reads have only metadata."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Uid of a Job without pods -> why none could be created, from its latest event."""
    sources: Mapping[str, Json] = field(default_factory=dict)
    """Name -> existing RLTrainingJob of this namespace whose weights the job waits for."""
    namespace_ends: bool = False
    """Whether the namespace has been deleted; only checked if `learner_ends` is true."""
    leaving: tuple[Json, ...] = ()
    """Terminating pods whose controller is gone already; the operator only waits for them."""
    budget: RLBudget | Literal["unread"] | None = None
    """The RLBudget of the job's namespace, if it bounds jobs of this operator."""
    failures: Failures | None = None
    """Decisions of the job's rules about the failures so far (`failures.judged`); None if it has no rules."""

    def pods(self, role: str | None = None) -> list[Json]:
        """Pods of a role, or all of them, oldest first."""
        found = [o for o in self.objects if o["kind"] == "Pod" and role in (None, role_of(o))]
        return sorted(found, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))

    def leaves(self) -> bool:
        """Whether a pod without its controller still uses its grace period."""
        return any(moment(pod["metadata"]["deletionTimestamp"]) > self.now for pod in self.leaving)

    def of_kinds(self, *kinds: str) -> tuple[Json, ...]:
        """Objects of any of the kinds."""
        return tuple(body for body in self.objects if body["kind"] in kinds)

    def jobs_without_pods(self) -> list[Json]:
        """Jobs whose pods should exist by now but do not.

        If a Deployment's pods were refused, the same refusal may affect Jobs. Then they are checked at once,
        so that both are reported together.
        """
        refused = any(
            body["kind"] == "Deployment" and true_condition(body, "ReplicaFailure") for body in self.objects
        )
        patience = 0.0 if refused else POD_CREATION_SECONDS
        return [
            body
            for role, kind in WORKLOADS.items()
            if kind == "Job"
            and (body := self.workload(role)) is not None
            and not self.pods(role)
            and not conditions(body)
            and (self.now - moment(body["metadata"]["creationTimestamp"])).total_seconds() > patience
        ]

    def learner_ends(self) -> bool:
        """Whether anyone has deleted a pod of the learner."""
        return any(is_ending(pod) for pod in self.pods(names.LEARNER))

    def of_set(self, which: int | str) -> Observed:
        """This view with only one set of rollout servers."""
        return replace(self, objects=tuple(body for body in self.objects if set_of(body) == str(which)))

    def of_suite(self, name: str | None) -> Observed:
        """This view with only the objects of one suite; with None, only those that belong to no suite."""
        return replace(self, objects=tuple(body for body in self.objects if suite_of(body) == name))

    def of_judge(self, name: str) -> Observed:
        """This view with only the servers of one judge."""
        return replace(self, objects=tuple(body for body in self.objects if judge_of(body) == name))

    def workload(self, role: str) -> Json | None:
        """The Job or Deployment of a role; the first one if the role has several."""
        kind = WORKLOADS[role]
        return next((o for o in self.objects if o["kind"] == kind and role_of(o) == role), None)


def role_of(body: Json) -> str | None:
    """The role in an object's labels."""
    role: str | None = body["metadata"].get("labels", {}).get(names.LABEL_COMPONENT)
    return role


def set_of(body: Json) -> str | None:
    """The set of rollout servers in an object's labels."""
    which: str | None = body["metadata"].get("labels", {}).get(names.LABEL_SERVER_SET)
    return which


def suite_of(body: Json) -> str | None:
    """The suite in an object's labels."""
    name: str | None = body["metadata"].get("labels", {}).get(names.LABEL_SUITE)
    return name


def judge_of(body: Json) -> str | None:
    """The judge in an object's labels."""
    name: str | None = body["metadata"].get("labels", {}).get(names.LABEL_JUDGE)
    return name


def unit_of(body: Json) -> str:
    """Which of a role's Deployments an object belongs to; empty if the role has one."""
    return set_of(body) or suite_of(body) or judge_of(body) or ""


def moment(text: str) -> datetime:
    """The time in a Kubernetes timestamp."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def conditions(body: Json) -> dict[str, Json]:
    """Conditions of an object by type."""
    return {item["type"]: item for item in body.get("status", {}).get("conditions") or []}


def true_condition(body: Json | None, kind: str) -> Json | None:
    """A condition of an object, if it is true."""
    found = conditions(body).get(kind) if body else None
    return found if found and found["status"] == "True" else None


def is_ending(body: Json) -> bool:
    """Whether an object is being deleted."""
    return "deletionTimestamp" in body["metadata"]


def is_ready(pod: Json) -> bool:
    """Whether a pod accepts requests."""
    return true_condition(pod, "Ready") is not None and not is_ending(pod)


def is_over(pod: Json) -> bool:
    """Whether a pod has ended permanently."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def has_succeeded(pod: Json) -> bool:
    """Whether all processes of a Job's pod have completed.

    The kubelet reports ended containers and a pod that is not ready before it reports Succeeded.
    """
    endings = [status.get("state", {}).get("terminated") for status in _main_containers(pod)]
    all_well = bool(endings) and all(ended is not None and ended.get("exitCode") == 0 for ended in endings)
    return pod.get("status", {}).get("phase") == "Succeeded" or all_well


def runs_on(pod: Json) -> bool:
    """Whether a pod is not ready although its processes still run: it only answers probes too late.

    A pod is not ready before its containers start. If it changed to not ready later, it had been ready.
    """
    ready = conditions(pod).get("Ready")
    running = [status.get("state", {}).get("running") for status in _main_containers(pod)]
    if ready is None or not running or not all(running):
        return False
    return moment(ready["lastTransitionTime"]) > max(moment(state["startedAt"]) for state in running)


def _main_containers(pod: Json) -> list[Json]:
    return pod.get("status", {}).get("containerStatuses") or []


def containers(pod: Json) -> list[Json]:
    """Statuses of a pod's containers, init containers first."""
    status = pod.get("status", {})
    return [*(status.get("initContainerStatuses") or []), *_main_containers(pod)]


def terminations(pod: Json) -> list[Json]:
    """How a pod's containers ended: the latest end of each, which may be that of the run before a restart."""
    endings = []
    for container in containers(pod):
        for moment_of in ("state", "lastState"):
            if ended := container.get(moment_of, {}).get("terminated"):
                endings.append(ended)
                break
    return endings
