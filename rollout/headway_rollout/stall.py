"""Why a job that does not go forward does not: names the part it waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from headway_api.sandbox_api import PoolState
from headway_rollout.engines.router import Router
from headway_rollout.http import Refused, Unreachable
from headway_rollout.training import Training

AFTER_SECONDS = 120.0
CHECK_SECONDS = 5.0


def culprit(training: Training, router: Router, pool: PoolState | str) -> str:
    """The part that has to move next, in its own words. `pool`: the broker's answer, or why there is none."""
    step = training.state.step
    if step < 0:
        return "learner: it has not announced its untrained weights yet"
    if training.batch_ready:
        return f"learner: the batch of step {step + 1} is ready, and has not been reported as trained"
    if (problem := router.problem()) is not None:
        return f"rollout servers: {problem}"
    if isinstance(pool, str):
        return f"sandbox broker: {pool}"
    if pool.problem is not None:
        return f"sandboxes: {pool.problem.reason}: {pool.problem.message}"
    running = sum(training.in_flight.values())
    return f"{running} episodes are running and none has ended; {pool.leased} sandboxes are leased"


class Watch:
    """Looks every few seconds whether the job moves."""

    def __init__(
        self,
        training: Training,
        router: Router,
        pool: Callable[[], Awaitable[PoolState]],
        changed: Callable[[], None],
        after: float = AFTER_SECONDS,
    ) -> None:
        self._training = training
        self._router = router
        self._pool = pool
        self._changed = changed
        self._after = after
        self.stalled: str | None = None

    async def run(self) -> None:
        """Keep `stalled` true, until cancelled."""
        while True:
            idle = time.monotonic() - self._training.state.moved_at
            found = (
                await self._ask() if idle > self._after and self._training.state.finished is None else None
            )
            if found != self.stalled:
                self.stalled = found
                self._changed()
            await asyncio.sleep(CHECK_SECONDS)

    async def _ask(self) -> str:
        try:
            pool: PoolState | str = await self._pool()
        except (Refused, Unreachable) as error:
            pool = str(error)
        return culprit(self._training, self._router, pool)
