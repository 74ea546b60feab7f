"""The accelerators that a job holds, and for how long. The operator computes this from the times of its pods.

Seconds are whole, as in Kubernetes' timestamps, so that sums are exact. A pod that has not ended counts up to
`seen_time`, so a reader's own clock does not matter.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Annotated, Final, NamedTuple

from pydantic import Field

from headway_api.base import StatusModel
from headway_api.field_types import Decimal, Word

MAX_PODS: Final = 256
MAX_TOTALS: Final = 64


class Holder(NamedTuple):
    """Role and product that seconds are counted for."""

    role: str
    product: str


class HeldSeconds(StatusModel):
    """Accelerator time of one role and product, for pods that are no longer in pods."""

    role: Word
    """learner, rollout, judge, or another role whose pods ask for accelerators."""
    product: Word
    """What the pods ask for: a node's product label, or the name of the resource."""
    seconds: Decimal
    """Seconds, summed over accelerators."""


class HeldPod(StatusModel):
    """A pod that holds accelerators, or held them recently."""

    uid: Word
    """metadata.uid of the pod."""
    role: Word
    """Role of the pod."""
    product: Word
    """What the pod asks for, as in totals."""
    count: Annotated[int, Field(ge=1)]
    """Number of accelerators."""
    since: datetime
    """When the pod was assigned to a node."""
    ends: datetime | None = None
    """When the pod's grace period ends, if the pod was deleted."""
    until: datetime | None = None
    """When the pod's last process ended. Absent while the pod holds accelerators."""
    gone_time: datetime | None = None
    """When the operator first found the pod gone. Ten minutes later its seconds move to totals."""


class Accelerators(StatusModel):
    """Accelerators that the job's pods hold and have held. Pods without accelerators are left out."""

    seen_time: datetime
    """When the operator last looked; seconds count up to this time. At most a minute old while pods run."""
    totals: Annotated[list[HeldSeconds], Field(max_length=MAX_TOTALS, default_factory=list)]
    """Seconds by role and product, for pods that are no longer in pods."""
    pods: Annotated[list[HeldPod], Field(max_length=MAX_PODS, default_factory=list)]
    """Pods that hold accelerators, and ended pods that an old view of the cluster may still show."""


def seconds_of(pod: HeldPod, seen: datetime) -> int:
    """Seconds until `seen` that a pod has held accelerators, summed over accelerators."""
    return pod.count * max(0, ((pod.until or seen) - pod.since) // timedelta(seconds=1))


def seconds(accounts: Accelerators | None) -> dict[Holder, int]:
    """Seconds that accelerators were held so far, by role and product, summed over accelerators."""
    found: Counter[Holder] = Counter()
    if accounts is None:
        return found
    for entry in accounts.totals:
        found[Holder(entry.role, entry.product)] += int(entry.seconds)
    for pod in accounts.pods:
        found[Holder(pod.role, pod.product)] += seconds_of(pod, accounts.seen_time)
    return dict(found)
