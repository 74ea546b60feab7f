"""Sends spans to a receiver of OpenTelemetry's traces. A slow or missing receiver never stops a job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import aiohttp

from headway_api import logs
from headway_api.config import Identity
from headway_api.finishing import SPANS_SECONDS
from headway_api.withheld import without_secret
from headway_coordinator.metrics.otel import Span, request

MAX_WAITING: Final = 20_000
"""The most spans that wait to be sent. Beyond that the newest are dropped."""
BATCH: Final = 2_000
"""The approximate number of spans in a request."""
SECONDS: Final = 10.0
"""The longest that a request may take."""
TRIES: Final = 3
PAUSE_SECONDS: Final = 1.0
AGAIN: Final = frozenset({429, 502, 503, 504})
"""Statuses after which OTLP requires a client to try again."""
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
        """`endpoint`: the receiver's address, without /v1/traces. `headers`: for each request."""
        self._headers = {**headers, "Content-Type": "application/x-protobuf"}
        self._http = http
        self._url = f"{endpoint.rstrip('/')}/v1/traces"
        self._job = job
        self._waiting: list[Span] = []
        self._given = asyncio.Event()
        self._sending = asyncio.Lock()
        self.sent = 0
        self.dropped = 0
        """Lost spans: there were too many, or the receiver did not take them."""

    def give(self, spans: Sequence[Span]) -> None:
        """Queue spans to be sent soon."""
        room = max(0, MAX_WAITING - len(self._waiting))
        self._waiting += spans[:room]
        self.dropped += len(spans[room:])
        self._given.set()

    async def run(self) -> None:
        """Send queued spans, until cancelled."""
        while True:
            await self._given.wait()
            self._given.clear()
            await self._send_all()

    async def close(self) -> None:
        """Send what still waits, for up to `SPANS_SECONDS`."""
        try:
            async with asyncio.timeout(SPANS_SECONDS):
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
                # They are removed only now, so that a cancelled batch is sent again at the end.
                del self._waiting[: len(batch)]
                if why is None:
                    self.sent += len(batch)
                else:
                    self.dropped += len(batch)
                    message = without_secret(why)
                    logs.event(_log, "spans-not-sent", level=logging.WARNING, spans=len(batch), error=message)

    async def _send(self, body: bytes) -> str | None:
        """Send a request. Returns why it was not taken; None if it was."""
        why = ""
        for number in range(TRIES):
            await asyncio.sleep(number * PAUSE_SECONDS)
            try:
                limit = aiohttp.ClientTimeout(total=SECONDS)
                # The operator has checked the address in the spec, but not the addresses to which a receiver
                # redirects.
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
