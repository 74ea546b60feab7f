"""Figures of batches, which a coordinator stores for its successor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headway_api.records import BatchFigures


class KeptFigures:
    """Stores figures one batch after the other. A successor computes lost figures again from the groups."""

    def __init__(self, write: Callable[[BatchFigures], Awaitable[None]]) -> None:
        self._write = write
        self._unkept: asyncio.Queue[BatchFigures] = asyncio.Queue()

    def add(self, figures: BatchFigures) -> None:
        """Store the figures of a batch later."""
        self._unkept.put_nowait(figures)

    async def run(self) -> None:
        """Store the figures of each batch, until cancelled."""
        while True:
            await self._write(await self._unkept.get())
            self._unkept.task_done()

    async def all(self) -> None:
        """Return once all figures are stored. `run` must run meanwhile."""
        await self._unkept.join()
