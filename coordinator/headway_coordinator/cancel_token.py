"""Cancels a group's episodes once the group cannot be trained any more, and reports that as a separate fault.

    async with stop.guard():  # raises StoppedError once `stop.now(why)` was called, even before the block
        ...

A cancellation from outside, such as the end of the process, passes through unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headway_api.records import Abandoned
from headway_coordinator.faults import InfraError


class StoppedError(InfraError):
    """The episode cannot be trained any more. It is an InfraError, so it is never scored."""

    def __init__(self, why: Abandoned) -> None:
        super().__init__(f"cancelled with its group, {why.reason}: {why.message}")


class CancelToken:
    """Belongs to one group and all of its episodes. Used on the event loop only."""

    def __init__(self) -> None:
        self.why: Abandoned | None = None
        self._guards: set[asyncio.Timeout] = set()

    def now(self, why: Abandoned) -> None:
        """End everything under a guard. The first reason is kept."""
        if self.why is None:
            self.why = why
            for guard in self._guards:
                guard.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def guard(self) -> AsyncIterator[None]:
        """Run the block until it ends or is stopped. Guards of one task must not be nested.

        Raises:
            StoppedError: the block was stopped, or must not begin.
        """
        if self.why is not None:
            raise self._stopped()
        try:
            async with asyncio.timeout(None) as guard:
                self._guards.add(guard)
                try:
                    yield
                finally:
                    self._guards.discard(guard)
        except TimeoutError:
            if not guard.expired():
                raise
            raise self._stopped() from None

    def _stopped(self) -> StoppedError:
        assert self.why is not None
        return StoppedError(self.why)
