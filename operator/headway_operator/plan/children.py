"""Whose an object is: a job's, if it is in its namespace and its controllers lead to the job's uid. Pure.

Labels say where to look, and prove nothing: whoever may create an object may write them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Final

from headway_api import names
from headway_api.document import Json

BETWEEN: Final = ("Job", "Deployment", "ReplicaSet")
"""Kinds that may stand between a job and its pods."""
LEVELS: Final = 3
"""Deployment, ReplicaSet, pod."""
LONGEST_GRACE: Final = timedelta(hours=2)
"""For so long at most a pod is waited for whose controller is gone, whatever grace period it claims: the
longest that a learner may have."""


def controller(body: Json) -> Json:
    """The ownerReference of an object's controller; empty where it has none."""
    owners = body["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), {})


def of(
    raw: Json, labelled: Iterable[Json], proved: Collection[str] = ()
) -> tuple[tuple[Json, ...], tuple[Json, ...]]:
    """Of the objects that a job's labels are on, those that are the job's; and pods on their way out that
    were, as far as can still be told.

    `proved` are uids of objects that have been the job's before: who deletes a job with --cascade=orphan
    takes their owner away, and a controller may be gone before its pods.
    A pod outlives its Job or its ReplicaSet while it uses its grace period. It is told by their names, which
    nobody else could give while the job holds them; it is only waited for.
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
