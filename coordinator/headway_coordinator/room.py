"""Places for episodes: a semaphore whose limit may move while it is held.

Whoever has a place keeps it: a lower limit only lets nobody in until enough have left. Places are given in
the order they were asked for; one given to a caller who was cancelled meanwhile goes to the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from types import TracebackType


class Room:
    """Used as `async with room`. All of its state is changed on the event loop only."""

    def __init__(self, ceiling: int) -> None:
        self.ceiling = ceiling
        """Most places there ever are."""
        self.used = 0
        """Places held now; above `limit` for as long as it takes after the limit was lowered."""
        self._limit = ceiling
        self._followers: list[Room] = []
        self._queue: deque[asyncio.Future[None]] = deque()
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

    def follower(self) -> Room:
        """Another room of the same size, whose limit is always this one's."""
        room = Room(self.ceiling)
        room.limit = self._limit
        self._followers.append(room)
        return room

    @property
    def waiting(self) -> int:
        """Callers that wait for a place."""
        return sum(not turn.done() for turn in self._queue)

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
        if self.used < self._limit:  # then nobody waits: whoever could be let in has been
            self._take()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self._queued = True
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):  # `_admit` may have passed over it
                    self._queue.remove(turn)
            else:  # it had been given the place, and cannot come any more
                self._leave()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _take(self) -> None:
        self.used += 1
        self._most = max(self._most, self.used)

    def _leave(self) -> None:
        self.used -= 1
        self._admit()

    def _admit(self) -> None:
        """Give the free places to who waits longest, past those who were cancelled."""
        while self._queue and self.used < self._limit:
            turn = self._queue.popleft()
            if not turn.done():
                self._take()
                turn.set_result(None)
