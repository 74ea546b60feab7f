"""Decides which objects belong to a job: those whose chain of controllers leads to the job's uid. Pure.

Job and objects are in the same namespace. Labels help to find objects but prove nothing, since anyone who may
create an object may write them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Final

from headway_api import names
from headway_api.document import Json

BETWEEN: Final = ("Job", "Deployment", "ReplicaSet")
"""Kinds of objects that may own pods on behalf of a job."""
LEVELS: Final = 3
"""Levels of ownership below a job: Deployment, ReplicaSet, pod."""
LONGEST_GRACE: Final = timedelta(hours=2)
"""After its controller is gone, a terminating pod is waited for only if its grace period is at most this
long. A learner's grace period may be no longer."""


def controller(body: Json) -> Json:
    """The ownerReference of an object's controller; empty if it has none."""
    owners = body["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), {})


def of(
    raw: Json, labelled: Iterable[Json], proved: Collection[str] = ()
) -> tuple[tuple[Json, ...], tuple[Json, ...]]:
    """The labelled objects that belong to the job, and terminating pods that probably belonged to it.

    `proved` are uids of objects that belonged to the job before. They still belong to it after a deletion
    with --cascade=orphan removed their owner references, or after their controller is gone.
    A pod outlives its Job or ReplicaSet while it uses its grace period. It is recognized by that owner's
    name, which nobody else could use while the job held it. The operator only waits for such a pod.
    """
    namespace = raw["metadata"]["namespace"]
    known = [body for body in labelled if body["metadata"]["namespace"] == namespace]
    owners = {raw["metadata"]["uid"]}
    owned: dict[int, Json] = {}
    for _ in range(LEVELS):
        found = [
            body
            for body in known
            if controller(body).get("uid") in owners or body["metadata"]["uid"] in proved
        ]
        owned |= {id(body): body for body in found}
        owners |= {body["metadata"]["uid"] for body in found if body["kind"] in BETWEEN}
    mine = tuple(body for body in known if id(body) in owned and body["kind"] != "ReplicaSet")
    there = {body["metadata"]["uid"] for body in known if body["kind"] in BETWEEN}
    stem = names.stem(raw["kind"], raw["metadata"]["name"])
    leaving = tuple(
        body
        for body in known
        if id(body) not in owned and controller(body).get("uid") not in there and _was_owned(body, stem)
    )
    return mine, leaving


def _was_owned(body: Json, stem: str) -> bool:
    owner, role = controller(body), (body["metadata"].get("labels") or {}).get(names.LABEL_COMPONENT)
    if body["kind"] != "Pod" or "deletionTimestamp" not in body["metadata"]:
        return False
    if int(body["metadata"].get("deletionGracePeriodSeconds") or 0) > LONGEST_GRACE.total_seconds():
        return False
    workload, name = names.child(stem, str(role)), str(owner.get("name"))
    if owner.get("kind") == "Job":
        return name == workload
    base = names.child(stem, names.BROKER) if role == names.SUITE_BROKER else workload
    return owner.get("kind") == "ReplicaSet" and name.startswith(f"{base}-")
