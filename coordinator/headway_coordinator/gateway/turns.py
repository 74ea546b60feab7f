"""Turns of agents that call over a network: bounded in number, and sampled once even if a client retries.

A client sends its request again if the connection broke or timed out. If the turn were sampled again, the
first answer would be trained with a reward that does not depend on it. So a turn is kept while its answer is
undelivered, and an equal request gets that answer. A delivered answer is repeated only to a client that says
that it retries. A turn whose client never returns is not trained.
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

AT_ONCE = 16
"""The most turns of one episode that may run at the same time."""
QUEUE_SECONDS = 30.0
"""Seconds that a turn may wait for a place. Then the request is refused with status 429."""
LEAST_WAIT_SECONDS = 0.001
"""A shorter wait for a place is not recorded, because most turns get a place at once."""
RETRY_AFTER_SECONDS = 5
GIVEN_UP_SECONDS = 10.0
"""If a connection is reset within these seconds after the answer was written, the client did not read it."""
LONG = 64 * 1024
"""Texts with more characters are compared by their digests."""
INLINE_BYTES = 128 * 1024
"""Conversations up to this size are compared on the event loop, in some 5 ms."""


class TurnLimiter:
    """Bounds the turns in flight over all episodes, by the number of episodes that the servers take now."""

    def __init__(self, limiter: AdaptiveSemaphore) -> None:
        self._limiter = limiter
        self.refused = 0
        """Number of requests that were refused because no place became free."""

    @property
    def taken(self) -> int:
        """Number of turns in flight."""
        return self._limiter.used

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place for one turn until the block ends.

        Raises:
            GatewayError: 429 with Retry-After, because no place became free in `QUEUE_SECONDS`.
        """
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(QUEUE_SECONDS):
                    await stack.enter_async_context(self._limiter)
            except TimeoutError as error:
                self.refused += 1
                why = f"{self.taken} turns are in flight, as many as the rollout servers take now"
                raise busy("servers_full", why) from error
            yield


@runtime_checkable
class Counts(Protocol):
    """A `Chat` that can count the tokens of a prompt without answering it."""

    async def count(self, session: Session, ask: Ask) -> int:
        """The number of tokens in a turn's prompt; see `Gateway.count`."""


@dataclass(frozen=True)
class Backend:
    """Answers the turns of an open rollout. An evaluation has one for each of its candidates."""

    chat: Chat
    places: TurnLimiter
    context_length: int | None = None
    """The most tokens that a conversation may have; None: unknown."""
    unread: str | None = None
    """Why the model's tool calls cannot be parsed. If so, requests with tools are refused. None: they can."""


def busy(code: str, why: str) -> GatewayError:
    """The error that asks the client to retry later, with status 429."""
    return GatewayError(
        429, code, f"{why}; ask again after Retry-After seconds", retry_after=RETRY_AFTER_SECONDS
    )


@dataclass(eq=False)
class Turn:
    """One turn, requested once or several times."""

    request: str
    """A digest of the request. Equal requests have equal digests."""
    task: asyncio.Task[Completion]
    placed: asyncio.Event
    """Set when the turn has a place and sampling begins. After that the answer cannot be a 429."""
    waiting: int = 0
    """Number of connected clients that wait for the turn."""
    deliveries: int = 0
    """Number of clients that have received the answer."""
    retried: bool = False
    """Whether the turn failed and a retry of its request became another turn."""

    @property
    def failed(self) -> bool:
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)


@dataclass(eq=False)
class Client:
    """One connection that waits for a turn."""

    turn: Turn
    has_it: bool = False
    """Whether the answer counts as delivered to this client."""
    since: float = 0.0
    """When the answer began to be written, in monotonic seconds."""


@dataclass
class Turns:
    """One episode's turns."""

    backend: Backend
    rollout: Rollout
    big: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a request with a large body is received and parsed, so that there is one at a time."""
    _by_request: defaultdict[str, list[Turn]] = field(default_factory=lambda: defaultdict(list))

    @asynccontextmanager
    async def turn(self, ask: Ask, *, retry: bool) -> AsyncIterator[Client]:
        """The turn that answers `ask`, running or done. Call `deliver` before its last bytes are sent.

        If the block ends because the client left, the delivery is taken back.

        Args:
            ask: the request.
            retry: whether the client says that this request is a retry.
        """
        large = ask.size > INLINE_BYTES
        request = await asyncio.to_thread(self._digest, ask) if large else self._digest(ask)
        turn = _same(self._by_request[request], retry)
        if turn is None:
            placed = asyncio.Event()
            turn = Turn(request, asyncio.create_task(self._sample(ask, placed)), placed)
            self._by_request[request].append(turn)
            turn.task.add_done_callback(partial(self._settle, turn))
        turn.waiting += 1
        client = Client(turn)
        try:
            yield client
        except (asyncio.CancelledError, ConnectionError):
            self._lose(client)
            raise
        finally:
            turn.waiting -= 1
            self._settle(turn)

    def deliver(self, client: Client, ask: Ask) -> None:
        """Mark the answer as delivered.

        Call this before the answer is sent, because the agent's next call may arrive before this handler
        has written the last bytes.

        Raises:
            GatewayError: the agent is done, or the episode is over.
        """
        self.rollout.require_open("a turn")
        turn, client.has_it, client.since = client.turn, True, time.monotonic()
        found = turn.task.result()
        turn.deliveries += 1
        kept = [*(found.conversation or ask.messages), found.message]
        self.rollout.answered(turn.request, found.node, kept, instructed=ask.instructed)

    def reset(self, client: Client) -> None:
        """Handle a reset of the client's connection: take the delivery back if it was just written.

        If the reset comes later, the client has read the answer, and a proxy ended the connection.
        """
        if client.has_it and self.rollout.is_open and time.monotonic() - client.since < GIVEN_UP_SECONDS:
            self._lose(client)

    def _lose(self, client: Client) -> None:
        """Handle that the client left: keep the turn's answer for a repeated request."""
        turn = client.turn
        self.rollout.lost.add(turn.request)
        turn.deliveries -= client.has_it
        if client.has_it and not turn.deliveries:
            self.rollout.unanswered(turn.task.result().node)
        client.has_it = False

    def _settle(self, turn: Turn, _: object = None) -> None:
        """Note that no client waits for a turn's answer any more, if that is so.

        This also reads a task's exception: asyncio logs an exception that nobody has read.
        """
        if turn.task.done() and not turn.failed and turn.waiting == 0:
            self.rollout.session.delivering.discard(turn.task.result().node)

    def _digest(self, ask: Ask) -> str:
        """A digest that is equal for equal requests."""
        asked: list[object] = [ask.may_call, ask.max_tokens, repr(ask.force), ask.stop]
        asked += [ask.logprobs, ask.instructed, ask.schema, ask.effort, ask.text]
        found = sha256()
        # One value at a time: `dumps` of a value is one call, and other threads wait for its end.
        for one in (*ask.messages, *ask.tools, asked):
            written = json.dumps(_with_digests(one) if ask.size > LONG else one, sort_keys=True)
            found.update(f"{written}\n".encode())
        return found.hexdigest()

    async def close(self) -> None:
        """Cancel the turns that still run, and wait for their end."""
        tasks = [turn.task for turns in self._by_request.values() for turn in turns]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _sample(self, ask: Ask, placed: asyncio.Event) -> Completion:
        every = [turn for turns in self._by_request.values() for turn in turns]
        # A turn whose clients have left does not count against `AT_ONCE`.
        running = sum(not turn.task.done() and turn.waiting > 0 for turn in every)
        if running > AT_ONCE:
            raise busy("too_many_turns", f"{AT_ONCE} turns of this episode are running")
        async with AsyncExitStack() as stack:
            with self.rollout.session.clock.timed("place", least=LEAST_WAIT_SECONDS):
                await stack.enter_async_context(self.backend.places.place())
            placed.set()
            self.rollout.require_open("a turn")
            found = await self.backend.chat.chat(self.rollout.session, ask)
            self.rollout.session.unseen.add(found.node)
            self.rollout.session.delivering.add(found.node)
            return found


def _with_digests(value: Any) -> Any:
    """The value with digests instead of long texts. To write long texts as JSON would block other threads."""
    if isinstance(value, str):
        return value if len(value) <= LONG else sha256(value.encode(errors="surrogatepass")).hexdigest()
    if isinstance(value, dict):
        return {_with_digests(name): _with_digests(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_with_digests(one) for one in value]
    return value


def _same(turns: Sequence[Turn], retry: bool) -> Turn | None:
    """The earlier turn whose answer an equal request should get; None if it should be sampled again."""
    lost = [turn for turn in turns if not turn.failed and turn.waiting == 0 and not turn.deliveries]
    if lost:
        return lost[0]
    if not retry:
        return None
    # The retry of a failed turn needs a new sample, because that turn has no answer.
    if (failed := next((turn for turn in turns if turn.failed and not turn.retried), None)) is not None:
        failed.retried = True
        return None
    return next((turn for turn in reversed(turns) if not turn.failed), None)
