"""Metrics of batches, which a coordinator stores for its successor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headway_api.records import BatchMetrics


class KeptMetrics:
    """Stores the metrics of one batch after the other. A successor recomputes lost ones from the groups."""

    def __init__(self, write: Callable[[BatchMetrics], Awaitable[None]]) -> None:
        self._write = write
        self._unkept: asyncio.Queue[BatchMetrics] = asyncio.Queue()

    def add(self, metrics: BatchMetrics) -> None:
        """Store the metrics of a batch later."""
        self._unkept.put_nowait(metrics)

    async def run(self) -> None:
        """Store the metrics of each batch, until cancelled."""
        while True:
            await self._write(await self._unkept.get())
            self._unkept.task_done()

    async def all(self) -> None:
        """Return once all metrics are stored. `run` must run meanwhile."""
        await self._unkept.join()
