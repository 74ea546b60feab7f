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
    """No further token may be sampled: the episode is truncated, not failed."""


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
    """The tokens that all prompts and answers of an episode may have, if its agent has its own loop.

    A budget needs this limit: it reserves an episode's worst case before the episode begins.
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
        """Hold a turn's tokens. Tokens that the turn does not sample are given back.

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
    """The tokens that an episode may still sample."""

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
        """Tokens for one turn: `wanted`, or all that the episode has left if that is less.

        If too few are left, a turn waits for running turns, because they may give some back.

        Raises:
            AllowanceSpentError: none are left.
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
