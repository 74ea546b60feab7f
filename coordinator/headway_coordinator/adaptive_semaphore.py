"""Places for episodes: a semaphore whose limit may move while it is held.

Whoever has a place keeps it: a lower limit only lets nobody in until enough have left. Places are given in
the order they were asked for; one given to a caller who was cancelled meanwhile goes to the next.

A room may have several lanes. One lane alone may fill the room. While several wait, each place that becomes
free goes to the lane that holds the fewest, so that each comes to an equal share and none starves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from types import TracebackType


class Lane:
    """Callers of a room who share its places with those of its other lanes. Used as `async with lane`."""

    def __init__(self, room: AdaptiveSemaphore) -> None:
        self._room = room
        self.used = 0
        """Places that its callers hold now."""
        self.last = 0
        """Number of the last place that was given to it, over all of the room's lanes."""
        self.queue: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        await self._room.enter(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._room.leave(self)

    @property
    def waiting(self) -> int:
        """Callers that wait for a place."""
        return sum(not turn.done() for turn in self.queue)


class AdaptiveSemaphore:
    """Used as `async with room`. All of its state is changed on the event loop only."""

    def __init__(self, ceiling: int) -> None:
        self.ceiling = ceiling
        """Most places there ever are."""
        self.used = 0
        """Places held now; above `limit` for as long as it takes after the limit was lowered."""
        self._limit = ceiling
        self._followers: list[AdaptiveSemaphore] = []
        self._lanes = [Lane(self)]
        """The first is that of callers who name none."""
        self._given = 0
        """Places given since the start."""
        self._most = 0
        self._queued = False

    @property
    def limit(self) -> int:
        """Places there are now: 1 to `ceiling`."""
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
        """Another room of the same size, whose limit is always this one's."""
        room = AdaptiveSemaphore(self.ceiling)
        room.limit = self._limit
        self._followers.append(room)
        return room

    def lane(self) -> Lane:
        """Another lane."""
        self._lanes.append(lane := Lane(self))
        return lane

    @property
    def waiting(self) -> int:
        """Callers that wait for a place."""
        return sum(lane.waiting for lane in self._lanes)

    def demand(self) -> tuple[int, bool]:
        """Since the last call: the most places held at once, and whether anybody had to wait for one; here
        or in a follower."""
        most, wanted = max(self._most, self.used), self._queued or self.waiting > 0
        self._most, self._queued = self.used, False
        for follower in self._followers:
            also, as_well = follower.demand()
            most, wanted = max(most, also), wanted or as_well
        return most, wanted

    async def __aenter__(self) -> None:
        await self.enter(self._lanes[0])

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave(self._lanes[0])

    async def enter(self, lane: Lane) -> None:
        """Return once a caller of one of its lanes has a place."""
        if self.used < self._limit:  # then nobody waits: whoever could be let in has been
            self._take(lane)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.queue.append(turn)
        self._queued = True
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):  # `_admit` may have passed over it
                    lane.queue.remove(turn)
            else:  # it had been given the place, and cannot come any more
                self.leave(lane)
            raise

    def leave(self, lane: Lane) -> None:
        """A caller of one of its lanes gives its place back."""
        self.used -= 1
        lane.used -= 1
        self._admit()

    def _take(self, lane: Lane) -> None:
        self.used += 1
        self._given += 1
        lane.used, lane.last = lane.used + 1, self._given
        self._most = max(self._most, self.used)

    def _admit(self) -> None:
        """Give the free places to who waits longest in the lane that has the fewest, past those who were
        cancelled."""
        while self.used < self._limit:
            queued = [lane for lane in self._lanes if lane.queue]
            if not queued:
                return
            # Of lanes that have equally many, the one that got its last place first: with one place in all,
            # they take turns.
            lane = min(queued, key=lambda lane: (lane.used, lane.last))
            turn = lane.queue.popleft()
            if not turn.done():
                self._take(lane)
                turn.set_result(None)
