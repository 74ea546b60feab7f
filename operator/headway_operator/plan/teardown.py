"""Taking a job's objects down, in order: workloads, then sandboxes, then what both needed to end well. Pure.

So a sandbox never outlives the NetworkPolicy that walls it off, no sandbox is made anew for one that was
deleted, and a process that is ending can still write its last status. What has been done is read off what is
left; an operator that was restarted in the midst goes on where the other stopped.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from headway_api import names
from headway_api.document import Json
from headway_operator.plan.observed import Observed, is_ending, is_over, moment, role_of

LOOK_SECONDS: Final = 0.5
"""A teardown goes on this often without being called: of what the operator deleted itself no event tells."""
LATE_SECONDS: Final = 60.0
"""An object that is there for so long after its time is worth a word."""


def stopping(observed: Observed) -> tuple[Json, ...]:
    """What is to be deleted now so that no pod is left.

    Sandboxes go once nobody is there to replace them. Pods come by one watch, in the order of their writes:
    a view without the brokers' pods holds every sandbox that it made.
    """
    if workloads := observed.of_kinds("Job", "Deployment"):
        return workloads
    brokers = [*observed.pods(names.BROKER), *observed.pods(names.SUITE_BROKER)]
    brokers += [pod for pod in observed.leaving if role_of(pod) in (names.BROKER, names.SUITE_BROKER)]
    if any(_may_act(pod, observed.now) for pod in brokers):
        return ()
    return tuple(observed.pods(names.SANDBOX))


def _may_act(pod: Json, now: datetime) -> bool:
    """A pod of a lost node stays on paper, and must not keep sandboxes alive beyond its grace period."""
    ends = pod["metadata"].get("deletionTimestamp")
    return not is_over(pod) and (ends is None or moment(ends) > now)


def to_delete(raw: Json, observed: Observed) -> tuple[Json, ...]:
    """What is to be deleted now so that nothing is left; empty while pods are ending."""
    if pods := stopping(observed):
        return pods
    if observed.pods() or observed.leaves():
        return ()
    # Secrets first: nobody sees them, so that what comes after them must tell whether this was done.
    return (*_secrets(raw), *observed.objects)


def _secrets(raw: Json) -> tuple[Json, ...]:
    """Known by name alone: nobody may list Secrets. A job of an earlier version has the second one too."""
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
    """What holds up the end of a deleted job, for people; None while all is in time."""
    asked = raw["metadata"]["deletionTimestamp"]
    ending = [body for body in observed.objects if is_ending(body)]
    # What owns a pod may wait for it. Of a pod the time of deletion is when its grace period ends.
    waited_for = [body for body in ending if body["kind"] == "Pod"] or ending or observed.pods()
    due = [(moment(body["metadata"].get("deletionTimestamp", asked)), body) for body in waited_for]
    since = observed.now - timedelta(seconds=LATE_SECONDS)
    found = sorted((item for item in due if item[0] < since), key=lambda item: item[0])
    if not found:
        return None
    when, body = found[0]
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    text = f"{body['kind']} {body['metadata']['name']}{others} should have gone at {when:%H:%M:%S} UTC"
    if body["kind"] != "Pod":
        return f"{text}; its metadata.finalizers say who holds it"
    node = body["spec"].get("nodeName")
    return f"{text}; if its node{f' {node}' if node else ''} is lost, delete the pod with --force"
