"""The most tokens that one episode may sample, over all its turns: `spec.rollout.episodeTokenLimit`.

A turn reserves tokens before it asks for them, and gives back what it did not use. So concurrent turns never
sample more than is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field


class NoTokensLeftError(Exception):
    """No further token may be sampled. The episode counts as truncated, and not as failed."""


class AllowanceSpentError(NoTokensLeftError):
    """The episode has sampled all the tokens that it may."""


@dataclass
class Reservation:
    """Tokens that one turn may sample."""

    tokens: int
    is_last: bool
    """Whether the turn asked for more than it got. If so, reaching the reservation ends the episode."""
    used: int = 0
    """Tokens sampled so far."""


@dataclass
class WholeAllowance:
    """The limit on tokens of all prompts and answers of an episode, for an agent that has its own loop.

    A job with `spec.budget` needs this limit, because it reserves an episode's worst case beforehand.
    """

    limit: int | None = None
    """None: no limit."""
    used: int = 0
    reached: bool = False
    """Whether the limit cut a turn, or refused one."""

    def __str__(self) -> str:
        return f"the episode has used the {self.limit} tokens that a job with spec.budget gives its agent"

    @contextmanager
    def turn(self, prompt: int, wanted: int) -> Iterator[Reservation]:
        """Reserve the tokens of a turn's prompt and answer. Tokens that it does not sample are given back.

        Raises:
            AllowanceSpentError: too few are left for the prompt and one more token.
        """
        room = wanted if self.limit is None else min(wanted, self.limit - self.used - prompt)
        if room < 1:
            self.reached = True
            raise AllowanceSpentError(str(self))
        reservation = Reservation(room, is_last=room < wanted)
        self.used += prompt + room
        try:
            yield reservation
        finally:
            self.used -= room - reservation.used
            self.reached |= reservation.is_last and reservation.used >= room


@dataclass
class TokenAllowance:
    """The limit on sampled tokens of an episode, and how many of them are used and reserved."""

    limit: int | None
    """None: no limit."""
    reached: bool = False
    """Whether the limit cut a turn, or refused one."""
    _used: int = 0
    _reserved: int = 0
    _given_back: asyncio.Event = field(default_factory=asyncio.Event)

    def __str__(self) -> str:
        return f"the episode has sampled the {self.limit} tokens of spec.rollout.episodeTokenLimit"

    @asynccontextmanager
    async def reserved(self, wanted: int) -> AsyncIterator[Reservation]:
        """Reserve tokens for one turn: `wanted`, or all that the episode has left if that is less.

        If fewer than `wanted` are left, the turn waits for running turns, because they may give some back.

        Raises:
            AllowanceSpentError: no tokens are left.
        """
        if self.limit is None:
            yield Reservation(wanted, is_last=False)
            return
        while self._left < wanted and self._reserved:
            await self._given_back.wait()
        if self._left < 1:
            self.reached = True
            raise AllowanceSpentError(str(self))
        reservation = Reservation(min(wanted, self._left), is_last=self._left < wanted)
        self._reserved += reservation.tokens
        try:
            yield reservation
        finally:
            self._reserved -= reservation.tokens
            self._used += reservation.used
            self.reached |= reservation.is_last and reservation.used >= reservation.tokens
            self._given_back.set()
            self._given_back = asyncio.Event()

    @property
    def _left(self) -> int:
        return 0 if self.limit is None else self.limit - self._used - self._reserved
