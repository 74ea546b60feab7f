"""A semaphore whose limit may change while it is held. It bounds the episodes and turns in flight.

A holder keeps its place when the limit falls, and nobody enters until enough holders have left. Callers get
places in the order in which they asked. If a caller was cancelled meanwhile, its place goes to the next.

A semaphore may have several lanes. A lane without competitors may take every place. While several lanes wait,
each free place goes to the lane that holds the fewest, so shares are equal and no lane starves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from types import TracebackType


class Lane:
    """Callers that compete for places with the callers of other lanes. Used as `async with lane`."""

    def __init__(self, limiter: AdaptiveSemaphore) -> None:
        self._limiter = limiter
        self.used = 0
        """Places that callers of this lane hold now."""
        self.last = 0
        """Number of the last place that a caller of this lane got. The semaphore counts over all lanes."""
        self.queue: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        await self._limiter.enter(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limiter.leave(self)

    @property
    def waiting(self) -> int:
        """Callers that wait for a place."""
        return sum(not turn.done() for turn in self.queue)


class AdaptiveSemaphore:
    """Used as `async with limiter`. Only the event loop changes its state."""

    def __init__(self, ceiling: int) -> None:
        self.ceiling = ceiling
        """Upper bound of `limit`."""
        self.used = 0
        """Places held now. It exceeds `limit` after the limit fell, until enough holders have left."""
        self._limit = ceiling
        self._followers: list[AdaptiveSemaphore] = []
        self._lanes = [Lane(self)]
        """The first lane is for callers that enter the semaphore without naming a lane."""
        self._given = 0
        """Places given since the start."""
        self._peak = 0
        self._queued = False

    @property
    def limit(self) -> int:
        """The current number of places: 1 to `ceiling`."""
        return self._limit

    @limit.setter
    def limit(self, places: int) -> None:
        if not 1 <= places <= self.ceiling:
            raise ValueError(f"{places} places of at most {self.ceiling}")
        self._limit = places
        self._admit()
        for follower in self._followers:
            follower.limit = places

    def follower(self) -> AdaptiveSemaphore:
        """A second semaphore with the same ceiling, whose limit always equals this one's."""
        limiter = AdaptiveSemaphore(self.ceiling)
        limiter.limit = self._limit
        self._followers.append(limiter)
        return limiter

    def lane(self) -> Lane:
        """Add a lane."""
        self._lanes.append(lane := Lane(self))
        return lane

    @property
    def waiting(self) -> int:
        """Callers that wait for a place."""
        return sum(lane.waiting for lane in self._lanes)

    def demand(self) -> tuple[int, bool]:
        """The most places held at once since the last call, and whether any caller waited.

        The number is the highest of this semaphore and its followers. A wait in any of them counts.
        """
        peak, wanted = max(self._peak, self.used), self._queued or self.waiting > 0
        self._peak, self._queued = self.used, False
        for follower in self._followers:
            also, as_well = follower.demand()
            peak, wanted = max(peak, also), wanted or as_well
        return peak, wanted

    async def __aenter__(self) -> None:
        await self.enter(self._lanes[0])

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave(self._lanes[0])

    async def enter(self, lane: Lane) -> None:
        """Wait until the caller has a place."""
        if self.used < self._limit:  # nobody waits while a place is free
            self._take(lane)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.queue.append(turn)
        self._queued = True
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):  # `_admit` may have skipped it already
                    lane.queue.remove(turn)
            else:  # the cancelled caller already has the place and cannot use it
                self.leave(lane)
            raise

    def leave(self, lane: Lane) -> None:
        """Give a place back."""
        self.used -= 1
        lane.used -= 1
        self._admit()

    def _take(self, lane: Lane) -> None:
        self.used += 1
        self._given += 1
        lane.used, lane.last = lane.used + 1, self._given
        self._peak = max(self._peak, self.used)

    def _admit(self) -> None:
        """Give free places to the lane that holds the fewest. Its longest-waiting live caller comes first."""
        while self.used < self._limit:
            queued = [lane for lane in self._lanes if lane.queue]
            if not queued:
                return
            # On a tie the lane whose last place is oldest wins, so that lanes alternate even with one place.
            lane = min(queued, key=lambda lane: (lane.used, lane.last))
            turn = lane.queue.popleft()
            if not turn.done():
                self._take(lane)
                turn.set_result(None)
