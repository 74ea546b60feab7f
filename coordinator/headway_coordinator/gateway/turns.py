"""Turns of agents that call over a network: bounded in number, and sampled once however often they are sent.

A client whose connection broke, or that lost patience, sends its request again. Were it sampled again, the
first answer would be trained with a reward it had no part in. So a turn whose answer was never delivered is
kept, and the same request gets it; one that was delivered is only repeated to a client that says it retries.
A turn that nobody ever came back for is not trained.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any, Protocol, runtime_checkable

from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.gateway.asks import Ask, Chat, Completion, Session
from headway_coordinator.gateway.refusals import GatewayError
from headway_coordinator.gateway.rollouts import Rollout
from headway_coordinator.trajectory.lengths import size

AT_ONCE = 16
"""Turns of one episode that may run at the same time."""
QUEUE_SECONDS = 30.0
"""Longest a turn waits for its place before its agent is told to come back."""
RETRY_AFTER_SECONDS = 5
GIVEN_UP_SECONDS = 10.0
"""How long after an answer was written a reset connection says that it was not read."""
LONG = 64 * 1024
"""Characters of a text that is told apart from others by its digest."""
INLINE_BYTES = 1024 * 1024
"""Of a conversation that is told apart from others at once, in some 5 ms."""


class TurnLimiter:
    """Turns that may be in flight, over all episodes: as many as the servers take episodes now."""

    def __init__(self, limiter: AdaptiveSemaphore) -> None:
        self._limiter = limiter
        self.refused = 0
        """Turns whose agent was told to come back."""

    @property
    def taken(self) -> int:
        """Turns in flight."""
        return self._limiter.used

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """One turn's place.

        Raises:
            Refusal: 429, with Retry-After, where none became free.
        """
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(QUEUE_SECONDS):
                    await held.enter_async_context(self._limiter)
            except TimeoutError as error:
                self.refused += 1
                why = f"{self.taken} turns are in flight, as many as the rollout servers take now"
                raise busy("servers_full", why) from error
            yield


@runtime_checkable
class Counts(Protocol):
    """Whoever knows the tokens of a prompt before it is answered."""

    async def count(self, session: Session, ask: Ask) -> int:
        """See `Gateway.count`."""


@dataclass(frozen=True)
class Backend:
    """Who answers the turns of an open rollout: an evaluation has one for each of its candidates."""

    chat: Chat
    places: TurnLimiter
    context_length: int | None = None
    """Tokens that a conversation may have; None: nobody knows."""


def busy(code: str, why: str) -> GatewayError:
    """Come back later."""
    return GatewayError(
        429, code, f"{why}; ask again after Retry-After seconds", retry_after=RETRY_AFTER_SECONDS
    )


@dataclass(eq=False)
class Turn:
    """One turn, asked for once or several times."""

    request: str
    """Equal for the same request."""
    task: asyncio.Task[Completion]
    placed: asyncio.Event
    """It is being sampled: no 429 comes any more."""
    waiting: int = 0
    """Clients that are connected and wait for it."""
    deliveries: int = 0
    """Clients that have it."""
    retried: bool = False
    """It failed, and a retry of it was a turn of its own."""

    @property
    def failed(self) -> bool:
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)


@dataclass(eq=False)
class Client:
    """One connection that waits for a turn."""

    turn: Turn
    has_it: bool = False
    since: float = 0.0
    """Monotonic: when its answer began to be written."""


@dataclass
class Turns:
    """One episode's turns."""

    backend: Backend
    rollout: Rollout
    big: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the request whose body is large: one at a time."""
    _by_request: defaultdict[str, list[Turn]] = field(default_factory=lambda: defaultdict(list))

    @asynccontextmanager
    async def turn(self, ask: Ask, *, retry: bool) -> AsyncIterator[Client]:
        """The turn that answers `ask`, running or done; `deliver` it before its last bytes are sent.

        A block that ends by the client's leaving takes that back.

        Args:
            ask: what is asked for.
            retry: the client says that it sends this again.
        """
        known = size(ask.messages, ask.tools)
        digest = partial(_digest, ask, long=known > LONG)
        request = await asyncio.to_thread(digest) if known > INLINE_BYTES else digest()
        turn = _same(self._by_request[request], retry)
        if turn is None:
            placed = asyncio.Event()
            turn = Turn(request, asyncio.create_task(self._sample(ask, placed)), placed)
            self._by_request[request].append(turn)
            turn.task.add_done_callback(_seen)
        turn.waiting += 1
        client = Client(turn)
        try:
            yield client
        except (asyncio.CancelledError, ConnectionError):
            self._lose(client)
            raise
        finally:
            turn.waiting -= 1

    def deliver(self, client: Client, ask: Ask) -> None:
        """The agent gets its answer. Said before the bytes are, for its next call may overtake their end.

        Raises:
            Refusal: the agent has said meanwhile that it is done.
        """
        self.rollout.require_open("a turn")
        turn, client.has_it, client.since = client.turn, True, time.monotonic()
        found = turn.task.result()
        turn.deliveries += 1
        kept = [*(found.conversation or ask.messages), found.message]
        self.rollout.answered(turn.request, found.node, kept, instructed=ask.instructed)

    def reset(self, client: Client) -> None:
        """The client closed its connection with some of the answer unread: it gave up while that was written.

        Much later it has read it, and what ends the connection is something between the two.
        """
        if client.has_it and self.rollout.is_open and time.monotonic() - client.since < GIVEN_UP_SECONDS:
            self._lose(client)

    def _lose(self, client: Client) -> None:
        """The client left: what it asked for waits for it to come back."""
        turn = client.turn
        self.rollout.lost.add(turn.request)
        turn.deliveries -= client.has_it
        if client.has_it and not turn.deliveries:
            self.rollout.unanswered(turn.task.result().node)
        client.has_it = False

    async def close(self) -> None:
        """End what still runs."""
        tasks = [turn.task for turns in self._by_request.values() for turn in turns]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _sample(self, ask: Ask, placed: asyncio.Event) -> Completion:
        every = [turn for turns in self._by_request.values() for turn in turns]
        # One whose client has left holds nobody up.
        running = sum(not turn.task.done() and turn.waiting > 0 for turn in every)
        if running > AT_ONCE:
            raise busy("too_many_turns", f"{AT_ONCE} turns of this episode are running")
        async with self.backend.places.place():
            placed.set()
            self.rollout.require_open("a turn")
            found = await self.backend.chat.chat(self.rollout.session, ask)
            self.rollout.session.unseen.add(found.node)
            return found


def _digest(ask: Ask, *, long: bool = True) -> str:
    """Equal for equal requests. `long`: there may be long texts in it."""
    asked = [ask.messages, ask.tools, ask.may_call, ask.max_tokens, repr(ask.force), ask.stop]
    asked += [ask.logprobs, ask.instructed, ask.schema, ask.effort, ask.text]
    told = _told(asked) if long else asked
    return sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _told(value: Any) -> Any:
    """The same, with digests in place of long texts: to write those out would hold everything else up."""
    if isinstance(value, str):
        return value if len(value) <= LONG else sha256(value.encode(errors="surrogatepass")).hexdigest()
    if isinstance(value, dict):
        return {_told(name): _told(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_told(one) for one in value]
    return value


def _same(turns: Sequence[Turn], retry: bool) -> Turn | None:
    """The turn that the same request is, where it is not another sample of it that is wanted."""
    lost = [turn for turn in turns if not turn.failed and turn.waiting == 0 and not turn.deliveries]
    if lost:
        return lost[0]
    if not retry:
        return None
    # A retry of what was refused, or failed, is still a wish for the sample that did not come of it.
    if (failed := next((turn for turn in turns if turn.failed and not turn.retried), None)) is not None:
        failed.retried = True
        return None
    return next((turn for turn in reversed(turns) if not turn.failed), None)


def _seen(task: asyncio.Task[Completion]) -> None:
    """Nobody may be left to look at a failure: that is no error of its own."""
    if not task.cancelled():
        task.exception()
