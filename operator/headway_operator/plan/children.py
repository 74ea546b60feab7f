"""Decides which job an object belongs to: same namespace, and its controllers lead to the job's uid. Pure.

Labels help to find objects but prove nothing: anyone who may create an object may write them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Final

from headway_api import names
from headway_api.document import Json

BETWEEN: Final = ("Job", "Deployment", "ReplicaSet")
"""Kinds that may be between a job and its pods."""
LEVELS: Final = 3
"""Levels of ownership below a job: Deployment, ReplicaSet, pod."""
LONGEST_GRACE: Final = timedelta(hours=2)
"""Longest grace period of a pod that is waited for after its controller is gone: the longest that a learner
may have."""


def controller(body: Json) -> Json:
    """The ownerReference of an object's controller; empty if it has none."""
    owners = body["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), {})


def of(
    raw: Json, labelled: Iterable[Json], proved: Collection[str] = ()
) -> tuple[tuple[Json, ...], tuple[Json, ...]]:
    """The labelled objects that belong to the job; and terminating pods that probably belonged to it.

    `proved` are uids of objects that belonged to the job before. Deleting a job with --cascade=orphan removes
    their owner, and a controller may be gone before its pods.
    A pod outlives its Job or ReplicaSet while it uses its grace period. It is recognized by the name of that
    owner, which nobody else could use while the job held it. The operator only waits for such a pod.
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
