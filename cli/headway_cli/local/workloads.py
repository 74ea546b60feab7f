"""Decides which pods a Job or a Deployment needs, like Kubernetes' controllers. Pure.

Only the fields that the operator's plans use are implemented. For Jobs: indexed or not, failure policies by
exit code, limits of failures in total and by index. For Deployments: the number of replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from headway_api.backoff import doubled
from headway_api.document import Json

BACKOFF_SECONDS: Final = 1.0
"""Seconds before a failed pod is created again for the first time. The wait doubles after each further
failure."""
LONGEST_BACKOFF_SECONDS: Final = 30.0
IGNORED, FAILS_JOB, COUNTED = "Ignore", "FailJob", "Count"
"""Actions of a Job's failure policy for a failed pod."""


@dataclass(frozen=True)
class PodState:
    """A pod's state, as far as its workload's controller needs it."""

    name: str
    index: int
    """Index of the pod in its workload."""
    phase: str
    """`Running`, `Succeeded` or `Failed`."""
    exit_code: int | None = None
    ended: datetime | None = None


@dataclass(frozen=True)
class Step:
    """The pods of a workload to create and to end now, and the workload's new status."""

    create: tuple[int, ...] = ()
    """Indices of pods to create."""
    delete: tuple[str, ...] = ()
    """Names of pods to end."""
    status: Json = field(default_factory=dict)


def deployment(body: Json, pods: Sequence[PodState], ready: int) -> Step:
    """The step of a Deployment: it needs one pod for each replica. `ready` is the number of ready pods."""
    wanted = int(body["spec"].get("replicas", 1))
    there = {pod.index for pod in pods}
    return Step(
        create=tuple(index for index in range(wanted) if index not in there),
        delete=tuple(pod.name for pod in pods if pod.index >= wanted),
        status={"replicas": len(pods), "readyReplicas": ready},
    )


def job(body: Json, pods: Sequence[PodState], now: datetime) -> Step:
    """The step of a Job: it needs one pod for each completion.

    A failed pod is created again while the Job's limits allow further failures. A Job that has ended needs no
    pods.
    """
    spec, before = body["spec"], body.get("status", {})
    if before.get("conditions"):
        running = tuple(pod.name for pod in pods if pod.phase == "Running")
        return Step(delete=running, status=before)
    failed = [pod for pod in pods if pod.phase == "Failed"]
    verdicts = {pod.name: verdict(spec, pod) for pod in failed}
    counted = [pod for pod in failed if verdicts[pod.name][0] == COUNTED]
    status: Json = {"failed": len(counted)} if counted else {}
    if (end := _end(body, pods, verdicts, counted)) is not None:
        kind, reason, message = end
        condition = {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": moment(now),
        }
        return Step(status={**status, "conditions": [condition]})
    busy = {pod.index for pod in pods if pod.phase != "Failed"}
    missing = [index for index in range(int(spec["completions"])) if index not in busy]
    due = tuple(index for index in missing if _is_due(index, counted, now))
    return Step(create=due, status=status)


def _end(
    body: Json,
    pods: Sequence[PodState],
    verdicts: Mapping[str, tuple[str, str]],
    counted: Sequence[PodState],
) -> tuple[str, str, str] | None:
    """Type, reason and message of the condition that ends a Job; None if the Job continues."""
    spec = body["spec"]
    for action, words in verdicts.values():
        if action == FAILS_JOB:
            return "Failed", "PodFailurePolicy", words
    by_index = spec.get("backoffLimitPerIndex")
    if by_index is None and len(counted) > int(spec.get("backoffLimit", 6)):
        return "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    indices = {pod.index for pod in counted}
    maximum = max((sum(pod.index == index for pod in counted) for index in indices), default=0)
    if by_index is not None and maximum > int(by_index):
        return "Failed", "MaxFailedIndexesExceeded", "Job has exceeded the maximum of failed indexes"
    done = {pod.index for pod in pods if pod.phase == "Succeeded"}
    if len(done) >= int(spec["completions"]):
        return "Complete", "CompletionsReached", "Reached expected number of succeeded pods"
    return None


def verdict(spec: Json, pod: PodState) -> tuple[str, str]:
    """The action of the Job's failure policy for a failed pod, and a text that names the rule."""
    for number, rule in enumerate(spec.get("podFailurePolicy", {}).get("rules", [])):
        found = rule.get("onExitCodes")
        if found is None or pod.exit_code is None:
            continue
        if (pod.exit_code in found["values"]) == (found["operator"] == "In"):
            words = f"failed with exit code {pod.exit_code} matching {rule['action']} rule at index {number}"
            return rule["action"], f"Container {found['containerName']} for pod {pod.name} {words}"
    return COUNTED, ""


def _is_due(index: int, counted: Sequence[PodState], now: datetime) -> bool:
    """Whether the backoff of an index is over, so that the successor of its failed pods may be created."""
    own = [pod.ended for pod in counted if pod.index == index and pod.ended is not None]
    if not own:
        return True
    return (now - max(own)).total_seconds() >= backoff(len(own))


def backoff(failures: int) -> float:
    """Seconds to wait before a pod is created again after this many failures."""
    return doubled(failures, BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS)


def moment(at: datetime) -> str:
    """A time in UTC as Kubernetes writes it: `2026-01-31T12:00:00Z`."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
