"""Messages about a pod that cannot be created or scheduled: which field of the job to change, and how. Pure.

The scheduler, quotas and the API server say what is missing, but not which field of the job requested it.
"""

from __future__ import annotations

import re
from typing import Final

from headway_api import names

BLOCKS: Final = {
    names.LEARNER: "spec.learner",
    names.ROLLOUT: "spec.rollout",
    names.JUDGE: "spec.judges[].model",
    names.SANDBOX: "spec.environment.sandbox",
}
"""Role -> the block of the spec that configures its pods."""
PREFIX: Final = re.compile(
    r'^(?:Error creating: )?(?:pods? "[^"]*" is forbidden: )?(?:pod rejected: )?'
    r"(?:error looking up service account \S+: )?"
)
"""Text before the part that says what is wrong."""
SUFFIX: Final = re.compile(r" (?:no new claims to deallocate, )?preemption: .*$", re.DOTALL)
"""Text that the scheduler adds about pods that it could preempt."""
NODE: Final = "Add such a node, or request what a node has"
QUOTA: Final = "free some of it, lower what the job asks for, or have the ResourceQuota raised"
ACCOUNT: Final = re.compile(r'serviceaccount "[^"]+" not found')
RUNTIME: Final = re.compile(r'RuntimeClass "[^"]+" not found')
PRIORITY: Final = "no PriorityClass with name"
VOLUME: Final = re.compile(r'Usage of EmptyDir volume "(?P<volume>[^"]+)" exceeds the limit')
LIMITS: Final = {"cache": "cacheSizeLimit", "tmp": "cacheSizeLimit", "shm": "shmSizeLimit"}
"""Volume of a pod -> the chart value that limits its size."""
RANGE: Final = re.compile(r"(?:maximum|minimum) \S+ usage per (?:Container|Pod)")


def of_scheduler(role: str | None, pod: str, message: str) -> str:
    """Why no node takes a pod.

    Args:
        role: the pod's role.
        pod: the pod's name.
        message: the scheduler's message.
    """
    words = SUFFIX.sub("", message).rstrip(". ")
    part = "resources" if "Insufficient" in words else "podTemplate"
    return f"{_field(role, part)}pod {pod}: Unschedulable: {words}. {NODE}"


def of_memory(role: str | None, pod: str, container: str, limit: str | None) -> str:
    """Message that a container used more memory than its limit; `limit` is None if it is unknown."""
    at = f" at its limit of {limit}" if limit else ""
    killed = f"container {container} of pod {pod} was OOMKilled{at}"
    return f"{_field(role, 'resources')}{killed}; raise its memory (limits.memory)"


def of_eviction(pod: str, message: str) -> str:
    """Why the kubelet or the scheduler ends a pod."""
    found = VOLUME.search(message)
    limit = LIMITS.get(found["volume"]) if found else None
    if limit is None:
        return f"pod {pod}: {message}"
    return (
        f"{limit} of the chart's values: pod {pod}: {message.rstrip('. ')}; ask an administrator to raise it"
    )


def of_creation(role: str | None, message: str) -> str:
    """Why the API server creates no pod of a role; `message` is the API server's message."""
    words = PREFIX.sub("", message).rstrip(". ")
    if "exceeded quota" in words:
        return f"{_field(role, 'resources')}{words}; {QUOTA}"
    if RANGE.search(words):
        return (
            f"{_field(role, 'resources')}{words}; lower what the job asks for, or have the LimitRange raised"
        )
    if ACCOUNT.search(words):
        return f"spec.serviceAccountName: {words}; create it in the job's namespace, or name another one"
    if RUNTIME.search(words):
        return f"{_field(role, 'runtimeClassName')}{words}; install it, or name another one"
    if PRIORITY in words:
        return f"{_field(role, 'podTemplate')}{words}; create it, or name another one"
    if "violates PodSecurity" in words:
        return f"{words}; run the job in a namespace whose label pod-security.kubernetes.io/enforce allows it"
    return words


def field_of(role: str | None, part: str) -> str | None:
    """Path of the field `part` for a role's pods; None if a job has no fields for this role."""
    if role == names.JUDGE and part != "resources":
        role = names.ROLLOUT  # other fields of a judge's pods are those of rollout servers
    block = BLOCKS.get(role or "")
    return f"{block}.{part}" if block else None


def _field(role: str | None, part: str) -> str:
    found = field_of(role, part)
    if found is None and part == "resources" and role is not None:
        found = f"resources.{role} of the chart's values"
    return f"{found}: " if found else ""
