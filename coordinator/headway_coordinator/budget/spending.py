"""Reservations before questions that cost something: to a judge, or to an endpoint outside the job."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, Protocol

from headway_coordinator.budget.worst import Amounts

Used = Callable[[Amounts], None]
"""Called with the part of its reservation that a question has used."""


class Spending(Protocol):
    """Reserves the possible cost of questions."""

    def reserved(self, limit: Amounts) -> AbstractAsyncContextManager[Used]:
        """Hold `limit` during the block, which begins once it fits.

        The part that the block reports as used stays reserved; the rest is freed.
        """


class Unbounded:
    """Reserves nothing, for jobs without a budget."""

    def reserved(self, limit: Amounts) -> AbstractAsyncContextManager[Used]:
        """Begin the block at once, and reserve nothing."""
        return nullcontext(lambda used: None)


UNBOUNDED: Final = Unbounded()
