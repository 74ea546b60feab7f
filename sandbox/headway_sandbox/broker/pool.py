"""Decides how many pods the pool creates and removes. Pure: the same counts give the same answer.

The target of the pool is a number of ready pods (`idle_target`). They suffice for the waiting episodes and a
reserve. The reserve is the configured minimum or, if that is more, the number of leases that the recent
demand takes while a pod starts. The pool never has more than `maximum` pods alive. It never starts more than
`starting_at_once` together, since beyond a node's cores that only slows each of them. Pods that are being
deleted count too. So if the cluster removes pods slowly, or something else deletes them, the pool creates new
pods no faster than old ones disappear.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from headway_api import names
from headway_api.backoff import doubled

PENDING_SECONDS = 900.0
"""A pod that does not run after this many seconds is replaced. It may need a new node and an image pull."""
ANSWER_SECONDS = 60.0
"""A pod that runs but does not answer for this many seconds is replaced."""


class State(StrEnum):
    """State of a pod. A pod never goes back to an earlier state."""

    STARTING = "starting"
    READY = "ready"
    LEASED = "leased"


@dataclass(eq=False)
class Pod:
    """A sandbox pod that is not being deleted."""

    name: str
    created: float
    """`time.monotonic` at creation; for pods found at the broker's start, when they were found."""
    uid: str | None = None
    """None until the API server has answered."""
    url: str | None = None
    state: State = State.STARTING
    ready_since: float = 0.0
    running_since: float | None = None
    """When the watch first showed the pod's address. The pool has probed the pod since then."""
    seen: bool = False
    """Whether a list or the watch has shown the pod."""


@dataclass(frozen=True)
class Limits:
    """The job's limits."""

    minimum: int
    """Idle pods to keep."""
    maximum: int
    """Pods alive at once, idle and leased together."""
    starting_at_once: int
    """Maximum pods that are created but do not answer yet."""


@dataclass(frozen=True)
class Counts:
    """Numbers of pods and waiting episodes."""

    starting: int
    ready: int
    leased: int
    waiting: int
    """Episodes that wait for a sandbox."""
    leaving: int = 0
    """Pods being deleted."""

    @property
    def alive(self) -> int:
        """Pods of the pool, without those being deleted."""
        return self.starting + self.ready + self.leased


@dataclass(frozen=True)
class Demand:
    """The recent demand."""

    leases_per_second: float
    start_seconds: float
    """Seconds from creating a pod to its first answer."""


def idle_target(limits: Limits, counts: Counts, demand: Demand) -> int:
    """Ready or starting pods that the pool should have."""
    ahead = math.ceil(demand.leases_per_second * demand.start_seconds)
    room = max(0, limits.maximum - counts.leased)
    return min(room, counts.waiting + max(limits.minimum, ahead))


def creates(limits: Limits, counts: Counts, demand: Demand) -> int:
    """Pods to create now."""
    return _within(limits, counts, idle_target(limits, counts, demand) - counts.ready - counts.starting)


def tries(limits: Limits, counts: Counts, wanted: int) -> int:
    """Pods to create now so that `wanted` pods start together. They soon show whether an image works."""
    return _within(limits, counts, wanted - counts.starting)


def _within(limits: Limits, counts: Counts, missing: int) -> int:
    """How many of the `missing` pods the limits allow to create now."""
    alive = limits.maximum - counts.alive
    present = limits.maximum + limits.starting_at_once - counts.alive - counts.leaving
    return max(0, min(missing, alive, present, limits.starting_at_once - counts.starting))


def surplus(limits: Limits, counts: Counts, demand: Demand) -> int:
    """Number of ready pods beyond twice the target. They may be removed once they have idled for a while."""
    return max(0, counts.ready - 2 * idle_target(limits, counts, demand))


def pause_after(failures: int) -> float:
    """Seconds to wait before the next creation, after `failures` failed ones in a row."""
    return 0.0 if failures == 0 else doubled(failures, 1.0, 30.0)


def overdue(pod: Pod, now: float) -> str | None:
    """Why a starting pod is given up; None while it may still become ready."""
    if pod.running_since is None:
        return None if now - pod.created < PENDING_SECONDS else f"does not run after {PENDING_SECONDS:.0f} s"
    if now - pod.running_since < ANSWER_SECONDS:
        return None
    return f"runs, but has not answered on port {names.PORT_SANDBOX} for {ANSWER_SECONDS:.0f} s"
