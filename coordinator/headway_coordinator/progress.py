"""What the tasks of a training job wait for: progress, or an error that ends the job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headway_api.exits import JobError
from headway_coordinator.state import State


class ProgressCondition:
    """Wakes the tasks of one job. Used on the event loop only."""

    def __init__(self, state: State, on_change: Callable[[], None]) -> None:
        self._state = state
        self._on_change = on_change
        self.changed = asyncio.Condition()
        """Notified at every change."""
        self.fault: JobError | None = None
        """The error that ends `Training.run`. It occurred in a call of the learner."""

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for progress. The wait is unbounded on purpose: `stall` reports what it waits for."""
        async with self.changed:
            await self.changed.wait_for(condition)

    async def notify(self) -> None:
        """Note progress, and wake all tasks that wait for it."""
        self._state.moved()
        self._on_change()
        async with self.changed:
            self.changed.notify_all()

    async def end(self, fault: JobError) -> None:
        """End `Training.run` with an error from a call of the learner."""
        self.fault = fault
        await self.notify()

    async def faulted(self) -> None:
        """Wait until a call of the learner has failed with an error, and raise that error."""
        await self.until(lambda: self.fault is not None)
        assert self.fault is not None
        raise self.fault
