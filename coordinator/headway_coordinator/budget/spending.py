"""What is asked before a question that costs something: to a judge, or to an endpoint outside the job."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, Protocol

from headway_coordinator.budget.worst import Amounts

Used = Callable[[Amounts], None]
"""Told what a question has used of what was reserved for it."""


class Spending(Protocol):
    """Whatever reserves what questions may cost."""

    def reserved(self, most: Amounts) -> AbstractAsyncContextManager[Used]:
        """Hold `most` in the block, which begins once that fits. What the block tells stays, the rest is
        free."""


class Unbounded:
    """Reserves nothing: of what no budget bounds."""

    def reserved(self, most: Amounts) -> AbstractAsyncContextManager[Used]:
        """As `Spending` says."""
        return nullcontext(lambda used: None)


UNBOUNDED: Final = Unbounded()
