"""What the budget reserves for one group: its attempts, its rewards and its questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from headway_api.records import EpisodeRecord, Outcome
from headway_coordinator.budget import worst
from headway_coordinator.budget.spending import Used
from headway_coordinator.budget.worst import Amounts, Bill, Limits, Slot
from headway_coordinator.cancel_token import CancelToken
from headway_coordinator.episode import Task


class Reserving(Protocol):
    """The part of a budget that a group's reservation needs."""

    async def ask(self, group: GroupReservation, limit: Amounts) -> None:
        """Return once a question of a running group fits, with its worst case reserved."""

    def changed(self, group: GroupReservation) -> None:
        """Apply a change in the reservation of a group."""


@dataclass(eq=False)
class GroupReservation:
    """The reservation of one group."""

    budget: Reserving
    bill: Bill
    limits: Limits
    sampled: int
    """The most tokens that an attempt samples."""
    key: str
    stop: CancelToken
    open: int
    """Episodes that may still have an attempt."""
    admitted: bool = False
    blocked: int = 0
    """Questions that wait for budget."""
    left: dict[int, int] = field(default_factory=dict)
    """Index of each open episode -> its remaining attempts."""
    judging: Counter[Slot] = field(default_factory=Counter)
    """The worst case of rewarding the group as a whole."""
    ended: Counter[Slot] = field(default_factory=Counter)
    """What the ended attempts may be billed for."""
    asked: Counter[Slot] = field(default_factory=Counter)
    """Cost of questions that were asked of judges and endpoints, with the worst case of those in flight."""

    @property
    def runs(self) -> bool:
        """Whether some of the group's work runs. At its end, it frees the budget that it did not use."""
        return self.admitted and max(1, self.open) > self.blocked

    def reservation(self) -> Amounts:
        """Everything that is reserved for the group."""
        ahead = (worst.of_attempts(self.limits, self.bill, self.sampled, n) for n in self.left.values())
        return worst.total([self.ended, self.asked, self.judging, *ahead])

    @asynccontextmanager
    async def reserved(self, limit: Amounts) -> AsyncIterator[Used]:
        """Hold `limit` for a question of this group during the block, which begins once it fits.

        The part that the block reports as used stays reserved until the group ends.
        """
        used: Counter[Slot] = Counter()
        await self.budget.ask(self, limit)
        try:
            yield used.update
        finally:
            self.asked.subtract(limit)
            self.asked.update(used)
            self.budget.changed(self)

    def watched(
        self, episode: Callable[[Task], Awaitable[EpisodeRecord]], settled: Container[str] = ()
    ) -> Callable[[Task], Awaitable[EpisodeRecord]]:
        """A function that runs an episode of the group, and then frees the budget that it did not use.

        An episode whose id is in `settled` is not retried.
        """

        async def run(task: Task) -> EpisodeRecord:
            record = await episode(task)
            self._end(record, final=record.episode_id in settled)
            return record

        return run

    def _end(self, record: EpisodeRecord, *, final: bool) -> None:
        left = self.left.pop(record.index, 1) - 1
        self.ended += worst.of_ended(record, self.bill)
        if record.outcome is Outcome.INFRA_ERROR and not final and left > 0:
            self.left[record.index] = left
        else:
            self.open -= 1
        self.budget.changed(self)
