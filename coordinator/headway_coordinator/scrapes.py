"""Waits until Prometheus has scraped the final metrics, because it cannot scrape a process that has ended."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from headway_api.finishing import LAST_SCRAPE_SECONDS


class Scrapes:
    """Notes each read of `/metrics`. Only the event loop's thread uses it."""

    def __init__(self) -> None:
        self._ever = False
        self._final = False
        self._leaves = asyncio.Event()
        """Set once `last` need not wait any more."""

    def read(self) -> None:
        """Note that `/metrics` was read."""
        self._ever = True
        if self._final:
            self._leaves.set()

    def final(self) -> None:
        """Note that `/metrics` shows final metrics from now on."""
        self._final = True

    def leave(self) -> None:
        """Stop waiting for a scrape."""
        self._leaves.set()

    async def last(self, seconds: float = LAST_SCRAPE_SECONDS) -> None:
        """Return once the final metrics were read, or after `seconds`.

        If nobody ever read a metric, nobody will read the final ones. Then this returns at once.
        """
        if not self._ever:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._leaves.wait()
