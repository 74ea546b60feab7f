"""What a pod of the pool is, and how many to make and to remove. Pure: the same counts give the same answer.

The pool aims at `idle` ready pods: enough for those who wait, the configured minimum, and what will be asked
for during the time a pod takes to start. It never has more than `maximum` alive, and never starts more than
`starting_at_once` together: beyond a node's cores that only makes each of them slower. Pods on their way
out count too: where the cluster removes them slowly, or something else deletes them, the pool makes new
ones no faster than the old ones go.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from headway_api import names
from headway_api.backoff import doubled

PENDING_SECONDS = 900.0
"""A pod that does not run for so long is replaced; a node may have to be added and an image pulled first."""
ANSWER_SECONDS = 60.0
"""A pod that runs and does not answer for so long is replaced."""


class State(StrEnum):
    """Where a pod is in its only round trip."""

    STARTING = "starting"
    READY = "ready"
    LEASED = "leased"


@dataclass(eq=False)
class Pod:
    """A sandbox pod that is not being deleted."""

    name: str
    created: float
    """`time.monotonic`; of pods found at start, when they were found."""
    uid: str | None = None
    """None until the API server has answered."""
    url: str | None = None
    state: State = State.STARTING
    ready_since: float = 0.0
    running_since: float | None = None
    """When the watch showed its address; it is being probed since."""
    seen: bool = False
    """The watch has shown it."""


@dataclass(frozen=True)
class Limits:
    """What the job allows."""

    minimum: int
    """Idle pods to keep."""
    maximum: int
    """Pods alive at once, idle and leased together."""
    starting_at_once: int
    """Pods created and not yet answering."""


@dataclass(frozen=True)
class Counts:
    """What there is."""

    starting: int
    ready: int
    leased: int
    waiting: int
    """Episodes that wait for a sandbox."""
    leaving: int = 0
    """Pods being deleted."""

    @property
    def alive(self) -> int:
        """Pods of the pool, those being deleted not counted."""
        return self.starting + self.ready + self.leased


@dataclass(frozen=True)
class Demand:
    """What the last minute was like."""

    leases_per_second: float
    start_seconds: float
    """From creating a pod to its first answer."""


def idle_target(limits: Limits, counts: Counts, demand: Demand) -> int:
    """Ready or starting pods that the pool should have."""
    ahead = math.ceil(demand.leases_per_second * demand.start_seconds)
    room = max(0, limits.maximum - counts.leased)
    return min(room, counts.waiting + max(limits.minimum, ahead))


def creates(limits: Limits, counts: Counts, demand: Demand) -> int:
    """Pods to create now."""
    return _within(limits, counts, idle_target(limits, counts, demand) - counts.ready - counts.starting)


def tries(limits: Limits, counts: Counts, wanted: int) -> int:
    """Pods to create now so that `wanted` start together: whether an image is any good is soon known."""
    return _within(limits, counts, wanted - counts.starting)


def _within(limits: Limits, counts: Counts, missing: int) -> int:
    """As many of `missing` pods as there may be."""
    alive = limits.maximum - counts.alive
    present = limits.maximum + limits.starting_at_once - counts.alive - counts.leaving
    return max(0, min(missing, alive, present, limits.starting_at_once - counts.starting))


def surplus(limits: Limits, counts: Counts, demand: Demand) -> int:
    """Ready pods that are more than twice what is aimed at: those that may go once they have idled."""
    return max(0, counts.ready - 2 * idle_target(limits, counts, demand))


def pause_after(failures: int) -> float:
    """Seconds to wait before the next creation after so many failed ones in a row."""
    return 0.0 if failures == 0 else doubled(failures, 1.0, 30.0)


def overdue(pod: Pod, now: float) -> str | None:
    """Why a starting pod is given up; None while it may still come."""
    if pod.running_since is None:
        return None if now - pod.created < PENDING_SECONDS else f"does not run after {PENDING_SECONDS:.0f} s"
    if now - pod.running_since < ANSWER_SECONDS:
        return None
    return f"runs and has not answered on port {names.PORT_SANDBOX} for {ANSWER_SECONDS:.0f} s"
