"""What accelerators a job holds, and for how long: the operator's word, from the times of its pods.

Seconds are whole, as Kubernetes writes times, so that sums are exact. A pod that has not ended counts up to
`seen_time`, and no reader's own clock is needed.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Annotated, Final, NamedTuple

from pydantic import Field

from headway_api.base import StatusModel
from headway_api.spec.types import Decimal

Word = Annotated[str, Field(max_length=128)]
MOST_PODS: Final = 256
MOST_TOTALS: Final = 64


class Holder(NamedTuple):
    """Whom seconds are counted for."""

    role: str
    product: str


class HeldSeconds(StatusModel):
    """What pods of one role have held of one product, of those that are in no list any more."""

    role: Word
    """learner, rollout, judge, or another role whose pods ask for accelerators."""
    product: Word
    """What the pods ask for: a node's product label, or the name of the resource."""
    seconds: Decimal
    """Seconds, one for each accelerator."""


class HeldPod(StatusModel):
    """A pod that holds accelerators, or held them until lately."""

    uid: Word
    """Its metadata.uid."""
    role: Word
    """Its role."""
    product: Word
    """What it asks for."""
    count: Annotated[int, Field(ge=1)]
    """How many accelerators."""
    since: datetime
    """When it was given a node."""
    ends: datetime | None = None
    """When its grace period is over, where it was deleted."""
    until: datetime | None = None
    """When its last process ended. Absent while it holds them."""
    gone_time: datetime | None = None
    """When it was first missed. Ten minutes later it is in totals."""


class Accelerators(StatusModel):
    """Accelerators that the job's pods hold and have held. Pods without accelerators are not in it."""

    seen_time: datetime
    """When the operator looked last: what is held counts up to then. At most a minute old while pods run."""
    totals: Annotated[list[HeldSeconds], Field(max_length=MOST_TOTALS, default_factory=list)]
    """By role and product, of the pods that are not in the list below."""
    pods: Annotated[list[HeldPod], Field(max_length=MOST_PODS, default_factory=list)]
    """Pods that hold accelerators, and those that have ended and may still be seen."""


def seconds_of(pod: HeldPod, seen: datetime) -> int:
    """Seconds that a pod has held accelerators for by `seen`, one for each of them."""
    return pod.count * max(0, ((pod.until or seen) - pod.since) // timedelta(seconds=1))


def seconds(accounts: Accelerators | None) -> dict[Holder, int]:
    """Everything held so far, by role and product."""
    found: Counter[Holder] = Counter()
    if accounts is None:
        return found
    for entry in accounts.totals:
        found[Holder(entry.role, entry.product)] += int(entry.seconds)
    for pod in accounts.pods:
        found[Holder(pod.role, pod.product)] += seconds_of(pod, accounts.seen_time)
    return dict(found)
