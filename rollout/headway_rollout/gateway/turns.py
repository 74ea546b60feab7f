"""Turns of agents that call over a network: bounded in number, and sampled once however often they are sent.

A client whose connection broke, or that lost patience, sends its request again. Were it sampled again, the
first answer would be trained with a reward it had no part in. So a turn whose answer was never delivered is
kept, and the same request gets it; one that was delivered is only repeated to a client that says it retries.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from headway_rollout.gateway.core import Ask, Completion, Gateway
from headway_rollout.gateway.refusals import Refusal
from headway_rollout.gateway.rollouts import Rollout

AT_ONCE = 16
"""Turns of one episode that may run at the same time."""
QUEUE_SECONDS = 30.0
"""Longest a turn waits for its place before its agent is told to come back."""
RETRY_AFTER_SECONDS = 5


class Places:
    """How many turns may be in flight, over all episodes: as many as the servers take episodes now."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._freed = asyncio.Condition()
        self.taken = 0
        self.refused = 0
        """Turns whose agent was told to come back."""

    @asynccontextmanager
    async def place(self, seconds: float = QUEUE_SECONDS) -> AsyncIterator[None]:
        """One turn's place.

        Raises:
            Refusal: 429, with Retry-After, where none became free.
        """
        try:
            async with asyncio.timeout(seconds), self._freed:
                await self._freed.wait_for(lambda: self.taken < self._limit())
                self.taken += 1
        except TimeoutError as error:
            self.refused += 1
            raise busy(
                f"{self.taken} turns are in flight, as many as the rollout servers take now"
            ) from error
        try:
            yield
        finally:
            self.taken -= 1
            async with self._freed:
                self._freed.notify()


def busy(why: str) -> Refusal:
    """Come back later."""
    return Refusal(
        429, "servers_full", f"{why}; ask again after Retry-After seconds", retry_after=RETRY_AFTER_SECONDS
    )


@dataclass
class _Turn:
    task: asyncio.Task[Completion]
    waiting: int = 0
    """Clients that are connected and wait for it."""
    delivered: bool = False


@dataclass
class Turns:
    """One episode's turns."""

    gateway: Gateway
    rollout: Rollout
    places: Places
    _by_request: defaultdict[str, list[_Turn]] = field(default_factory=lambda: defaultdict(list))

    @asynccontextmanager
    async def turn(self, ask: Ask, *, retry: bool) -> AsyncIterator[asyncio.Task[Completion]]:
        """The turn that answers `ask`, running or done; leave the block without an error once delivered.

        Args:
            ask: what is asked for.
            retry: the client says that it sends this again.
        """
        asked = [ask.messages, ask.tools, ask.may_call, ask.max_tokens, repr(ask.force)]
        key = json.dumps(asked, sort_keys=True)
        turn = _same(self._by_request[key], retry)
        if turn is None:
            running = sum(not task.done() for task in self._tasks())
            if running >= AT_ONCE:
                raise busy(f"{running} turns of this episode are running")
            turn = _Turn(asyncio.create_task(self._sample(ask)))
            self._by_request[key].append(turn)
            turn.task.add_done_callback(_seen)
        turn.waiting += 1
        try:
            yield turn.task
            turn.delivered = True
        finally:
            turn.waiting -= 1

    async def close(self) -> None:
        """End what still runs."""
        tasks = self._tasks()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _tasks(self) -> list[asyncio.Task[Completion]]:
        return [turn.task for turns in self._by_request.values() for turn in turns]

    async def _sample(self, ask: Ask) -> Completion:
        async with self.places.place():
            self.rollout.require_open("a turn")
            return await self.gateway.chat(self.rollout.session, ask)


def _same(turns: Sequence[_Turn], retry: bool) -> _Turn | None:
    """The turn that the same request is, where it is not another sample of it that is wanted."""
    good = [turn for turn in turns if not _failed(turn.task)]
    lost = [turn for turn in good if turn.waiting == 0 and not turn.delivered]
    return next(iter(lost), good[-1] if good and retry else None)


def _failed(task: asyncio.Task[Completion]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _seen(task: asyncio.Task[Completion]) -> None:
    """Nobody may be left to look at a failure: that is no error of its own."""
    if not task.cancelled():
        task.exception()
