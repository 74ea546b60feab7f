"""Sends spans to a receiver of OpenTelemetry's traces. One that is slow or away never stops a job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import aiohttp

from headway_api import logs
from headway_api.config import Identity
from headway_api.withheld import without_secret
from headway_coordinator.metrics.otel import Span, request

WAITING_MOST: Final = 20_000
"""Spans that wait to be sent; more are dropped, the newest first."""
BATCH: Final = 2_000
"""Spans of a request, about."""
SECONDS: Final = 10.0
"""Longest that a request may take."""
TRIES: Final = 3
PAUSE_SECONDS: Final = 1.0
LAST_SECONDS: Final = 15.0
"""Longest that what waits may take to be sent when the job ends."""
AGAIN: Final = frozenset({429, 502, 503, 504})
"""Answers after which OTLP has a client try again."""
_log = logging.getLogger(__name__)


class Otlp:
    """Sends in the background, in the order in which spans were given. Not thread-safe."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        endpoint: str,
        job: Identity,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`endpoint`: the receiver's address, without /v1/traces. `headers`: of each request."""
        self._headers = {**headers, "Content-Type": "application/x-protobuf"}
        self._http = http
        self._url = f"{endpoint.rstrip('/')}/v1/traces"
        self._job = job
        self._waiting: list[Span] = []
        self._given = asyncio.Event()
        self._sending = asyncio.Lock()
        self.sent = 0
        self.dropped = 0
        """Spans that nobody will see: there were too many, or the receiver did not take them."""

    def give(self, spans: Sequence[Span]) -> None:
        """Send these when there is time."""
        room = max(0, WAITING_MOST - len(self._waiting))
        self._waiting += spans[:room]
        self.dropped += len(spans[room:])
        self._given.set()

    async def run(self) -> None:
        """Send what is given, until cancelled."""
        while True:
            await self._given.wait()
            self._given.clear()
            await self._send_all()

    async def close(self) -> None:
        """Send what still waits, for a while."""
        try:
            async with asyncio.timeout(LAST_SECONDS):
                await self._send_all()
        except TimeoutError:
            self.dropped += len(self._waiting)
        if self.dropped:
            logs.event(_log, "spans-dropped", level=logging.WARNING, spans=self.dropped, sent=self.sent)

    async def _send_all(self) -> None:
        async with self._sending:
            while self._waiting:
                batch = self._waiting[:BATCH]
                why = await self._send(await asyncio.to_thread(request, self._job, batch))
                # Not before: what is cancelled meanwhile is sent again at the end.
                del self._waiting[: len(batch)]
                if why is None:
                    self.sent += len(batch)
                else:
                    self.dropped += len(batch)
                    said = without_secret(why)
                    logs.event(_log, "spans-not-sent", level=logging.WARNING, spans=len(batch), error=said)

    async def _send(self, body: bytes) -> str | None:
        """Send a request; why it was not taken, None where it was."""
        why = ""
        for number in range(TRIES):
            await asyncio.sleep(number * PAUSE_SECONDS)
            try:
                limit = aiohttp.ClientTimeout(total=SECONDS)
                # The operator has checked the address of the spec, and none that a receiver redirects to.
                posted = self._http.post(
                    self._url, data=body, headers=self._headers, timeout=limit, allow_redirects=False
                )
                async with posted as answer:
                    if answer.status < 300:
                        return None
                    why = f"{self._url}: status {answer.status}"
                    if answer.status not in AGAIN:
                        return why
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                why = f"{self._url}: {type(error).__name__}: {error}"
        return why
