"""When the next request to an endpoint may start, and how long to wait after one that failed."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from headway_api.backoff import doubled, spread
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore

FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 1.0, 60.0
"""The pause between two tries of a request if the endpoint names none, doubled each time."""


class Pace:
    """Limits on the requests to one endpoint.

    At most `limit` are in flight. They start at least `60 / per_minute` seconds apart, so no minute has more
    than `per_minute` starts. None starts during a pause that the endpoint asked for.
    """

    def __init__(
        self, limit: int, per_minute: int | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._places = AdaptiveSemaphore(limit)
        self._apart = 60.0 / per_minute if per_minute else 0.0
        self._clock = clock
        self._door = asyncio.Lock()
        self._next = self._quiet_until = -math.inf

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Hold one request's place, first come, first served.

        A caller that is cancelled while it waits uses up no start.
        """
        async with self._places:
            async with self._door:
                await self._sleep(lambda: max(self._next, self._quiet_until))
                self._next = self._clock() + self._apart
            yield

    def pause(self, seconds: float) -> None:
        """Let no request start for `seconds`."""
        self._quiet_until = max(self._quiet_until, self._clock() + seconds)

    async def ready(self) -> None:
        """Return once there is no pause, so that an episode that begins now need not wait for one."""
        await self._sleep(lambda: self._quiet_until)

    async def _sleep(self, until: Callable[[], float]) -> None:
        while (seconds := until() - self._clock()) > 0:
            await asyncio.sleep(seconds)


def backoff(tries: int, chance: Callable[[], float] = random.random) -> float:
    """Seconds to wait after the `tries`-th failure.

    The time doubles with each failure. The wait is a random part of it, from half to all.
    """
    return spread(doubled(tries, FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS), chance)


def pause(asked: float | None, tries: int, chance: Callable[[], float] = random.random) -> float:
    """Seconds that every request waits after a request's `tries`-th refusal, at least as long as asked.

    If the endpoint asks for no time, the wait is that of `backoff`. From the second refusal of a request on,
    an asked wait lasts at least half a second.
    """
    if asked is None:
        return backoff(tries, chance)
    wait = asked + chance() * min(1.0, asked / 4.0)
    return wait if tries == 1 else max(wait, backoff(1, chance))


def asked_for(headers: Mapping[str, str], now: Callable[[], float] = time.time) -> float | None:
    """Seconds that an answer asks to wait; None if it names none that can be read.

    `Retry-After` holds seconds or an HTTP date. The date counts from the answer's own `Date`, because the
    clocks of two machines differ. Some services send `retry-after-ms` beside it.
    """
    if (exact := _number(headers.get("retry-after-ms"))) is not None:
        return exact / 1000.0
    value = headers.get("Retry-After")
    if (seconds := _number(value)) is not None:
        return seconds
    at, sent = _date(value), _date(headers.get("Date"))
    return None if at is None else max(0.0, at - (now() if sent is None else sent))


def _number(value: str | None) -> float | None:
    try:
        found = math.nan if value is None else float(value)
    except ValueError:
        return None
    return max(0.0, found) if math.isfinite(found) else None


def _date(value: str | None) -> float | None:
    try:
        found = None if value is None else parsedate_to_datetime(value)
    except (ValueError, OverflowError, TypeError):  # such as a year of twenty digits
        return None
    if found is None:
        return None
    return (found if found.tzinfo else _utc(found)).timestamp()


def _utc(found: datetime) -> datetime:
    return found.replace(tzinfo=UTC)
