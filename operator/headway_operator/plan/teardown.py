"""Decides the order of removal: workloads, then sandboxes, then what both need to end cleanly. Pure.

So a sandbox never outlives the NetworkPolicy that isolates it, and no deleted sandbox is replaced. A process
that is ending can still write its last status. The remaining objects show what has been done, so a restarted
operator continues where its predecessor stopped.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from headway_api import names
from headway_api.document import Json
from headway_operator.plan.observed import Observed, is_ending, is_over, moment, role_of

LOOK_SECONDS: Final = 0.5
"""Seconds between two rounds of a teardown, since no event reports the operator's own deletions."""
LATE_SECONDS: Final = 60.0
"""An object that still exists this many seconds after it should be gone is reported."""


def stopping(observed: Observed) -> tuple[Json, ...]:
    """The objects to delete now so that no pod remains.

    Sandboxes are deleted once no broker can replace them. One watch delivers all pods in the order of their
    writes. So a view without the brokers' pods contains every sandbox that they created.
    """
    if workloads := observed.of_kinds("Job", "Deployment"):
        return workloads
    brokers = [*observed.pods(names.BROKER), *observed.pods(names.SUITE_BROKER)]
    brokers += [pod for pod in observed.leaving if role_of(pod) in (names.BROKER, names.SUITE_BROKER)]
    if any(_may_act(pod, observed.now) for pod in brokers):
        return ()
    return tuple(observed.pods(names.SANDBOX))


def _may_act(pod: Json, now: datetime) -> bool:
    """Whether a pod can still act. The pod of a lost node stays listed, but counts only until its
    grace period ends."""
    ends = pod["metadata"].get("deletionTimestamp")
    return not is_over(pod) and (ends is None or moment(ends) > now)


def to_delete(raw: Json, observed: Observed) -> tuple[Json, ...]:
    """The objects to delete now so that nothing remains; empty while pods are ending."""
    if pods := stopping(observed):
        return pods
    if observed.pods() or observed.leaves():
        return ()
    # Secrets first: no watch shows them. While other objects exist, the next round deletes the Secrets again.
    return (*_secrets(raw), *observed.objects)


def _secrets(raw: Json) -> tuple[Json, ...]:
    """The job's Secrets by name, since the operator may not list Secrets. The token Secret exists only in
    jobs that an earlier version started."""
    metadata = raw["metadata"]
    stem = names.stem(raw["kind"], metadata["name"])
    return tuple(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name(stem, metadata["uid"]), "namespace": metadata["namespace"]},
        }
        for name in (names.keys_secret, names.token_secret)
    )


def late(raw: Json, observed: Observed) -> str | None:
    """What delays the end of a deleted job, for people; None while nothing is late."""
    asked = raw["metadata"]["deletionTimestamp"]
    ending = [body for body in observed.objects if is_ending(body)]
    # A pod's owner may wait for the pod. A pod's deletionTimestamp is the end of its grace period.
    waited_for = [body for body in ending if body["kind"] == "Pod"] or ending or observed.pods()
    due = [(moment(body["metadata"].get("deletionTimestamp", asked)), body) for body in waited_for]
    since = observed.now - timedelta(seconds=LATE_SECONDS)
    found = sorted((item for item in due if item[0] < since), key=lambda item: item[0])
    if not found:
        return None
    when, body = found[0]
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    text = (
        f"{body['kind']} {body['metadata']['name']}{others} should have been deleted by {when:%H:%M:%S} UTC"
    )
    if body["kind"] != "Pod":
        return f"{text}; its metadata.finalizers name what keeps it"
    node = body["spec"].get("nodeName")
    return f"{text}; if its node{f' {node}' if node else ''} is lost, delete the pod with --force"
