"""Why a job makes no progress: names the part that it waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from headway_api.sandbox_api import PoolState
from headway_coordinator.engines.router import Router
from headway_coordinator.http import PeerUnreachableError, UpstreamError
from headway_coordinator.recurring import Recurring, causes_message
from headway_coordinator.training import Training

AFTER_SECONDS = 120.0
"""Seconds for which a part may keep the job waiting, if it normally acts soon."""
LEARNER_SECONDS = 1800.0
"""Seconds for which a learner that trains may keep the job waiting. One rank may keep the others waiting as
long."""
STORE_SECONDS = 60.0
"""A write to the artifact store that takes longer counts as a wait for the store."""
CHECK_SECONDS = 5.0


class Blocker(NamedTuple):
    """The part of the job that has to act next."""

    words: str
    """The part, and what it does not do."""
    patience: float
    """Seconds for which the part may keep the job waiting before anything is wrong."""


def blocker(training: Training, router: Router, pool: PoolState | str, episode_seconds: float) -> Blocker:
    """The part of a training job that has to act next.

    Args:
        training: the job.
        router: the job's rollout servers.
        pool: the broker's answer, or why there is none.
        episode_seconds: the longest that an episode may take.
    """
    step = training.state.step
    if training.store_busy > STORE_SECONDS:
        words = "artifact store: a write has been under way for over a minute"
        return Blocker(words, AFTER_SECONDS)
    if training.paused():
        words = "operator: the job is paused, but its pods still exist; see status.pause"
        return Blocker(words, AFTER_SECONDS)
    if step < 0:
        return Blocker("learner: it has not announced its untrained weights yet", AFTER_SECONDS)
    if training.batch_ready:
        words = f"learner: the batch of step {step + 1} is ready, but has not been reported as trained"
        return Blocker(words, LEARNER_SECONDS)
    if router.problem() is None and (problem := training.validations.problem) is not None:
        return Blocker(f"rollout servers, for the validation: {problem}", AFTER_SECONDS)
    running = sum(training.state.in_flight.values())
    return of_episodes(_of_servers(router), pool, training.faults, running, episode_seconds)


def _of_servers(router: Router) -> str | None:
    problem = router.problem()
    return None if problem is None else f"rollout servers: {problem}"


def of_episodes(
    problem: str | None, pool: PoolState | str, faults: Recurring, running: int, episode_seconds: float
) -> Blocker:
    """The part that has to act next if episodes run and none ends.

    Args:
        problem: why nothing can be sampled, after the name of the part; None if sampling works.
        pool: the broker's answer, or why there is none.
        faults: why episodes failed.
        running: episodes in flight.
        episode_seconds: the longest that an episode may take.
    """
    if problem is not None:
        return Blocker(problem, AFTER_SECONDS)
    if isinstance(pool, str):
        return Blocker(f"sandbox broker: {pool}", AFTER_SECONDS)
    if pool.problem is not None:
        return Blocker(f"sandboxes: {pool.problem.reason}: {pool.problem.message}", AFTER_SECONDS)
    if standing := faults.standing:
        return Blocker(causes_message(standing), AFTER_SECONDS + (episode_seconds if pool.leased else 0.0))
    words = f"{running} episodes are running and none has ended; {pool.leased} sandboxes are leased"
    return Blocker(words, AFTER_SECONDS + (episode_seconds if pool.leased else 0.0))


class Watch:
    """Checks every few seconds whether the job makes progress.

    Args:
        idle: seconds without progress; None if the job is over.
        blame: given the broker's answer or why there is none, returns the part that has to act next.
        pool: asks the broker for the state of its pool.
        changed: called when `stalled` has changed.
    """

    def __init__(
        self,
        idle: Callable[[], float | None],
        blame: Callable[[PoolState | str], Blocker],
        pool: Callable[[], Awaitable[PoolState]],
        changed: Callable[[], None],
    ) -> None:
        self._idle = idle
        self._blame = blame
        self._pool = pool
        self._changed = changed
        self.stalled: str | None = None

    async def run(self) -> None:
        """Keep `stalled` up to date, until cancelled."""
        while True:
            found = await self._look()
            if found != self.stalled:
                self.stalled = found
                self._changed()
            await asyncio.sleep(CHECK_SECONDS)

    async def _look(self) -> str | None:
        idle = self._idle()
        if idle is None or idle <= AFTER_SECONDS:
            return None
        try:
            pool: PoolState | str = await self._pool()
        except (UpstreamError, PeerUnreachableError) as error:
            pool = str(error)
        found = self._blame(pool)
        return found.words if idle > found.patience else None


def training_watch(
    training: Training,
    router: Router,
    pool: Callable[[], Awaitable[PoolState]],
    changed: Callable[[], None],
    episode_seconds: float,
) -> Watch:
    """The watch of a training job."""

    def idle() -> float | None:
        state = training.state
        return None if state.finished is not None else time.monotonic() - state.moved_at

    return Watch(
        idle, lambda pool_state: blocker(training, router, pool_state, episode_seconds), pool, changed
    )
