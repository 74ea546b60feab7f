"""The judges' cost of scripts and of questions that are asked twice: stored, and on the bill.

They belong to no episode, so no trajectory has them. A recount of the bill reads the stored records.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from headway_api.artifacts import JUDGEMENTS, Layout, written
from headway_api.record import Record
from headway_api.records import Judgement
from headway_api.store import Store
from headway_api.stored import read
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.serial_executor import SerialExecutor


class Spent(Record):
    """One try's questions to judges."""

    whose: str
    """The try's name, which no other try has."""
    at: float
    """Unix time, which decides the price."""
    judgements: list[Judgement]


@dataclass
class JudgesBill:
    """The judges' bill of one job's preflight."""

    store: Store
    layout: Layout
    ledger: Ledger
    _blocking: SerialExecutor = field(default_factory=SerialExecutor)

    async def add(self, whose: str, found: Sequence[Judgement]) -> None:
        """Store the cost, then write it into the ledger."""
        await self._blocking(self._add, Spent(whose=whose, at=time.time(), judgements=[*found]))

    async def restore(self) -> None:
        """Write the costs into the ledger that a predecessor stored but did not write to the ledger."""
        await self._blocking(self._restore)

    def _add(self, spent: Spent) -> None:
        self.store.put_new(self.layout.preflight_judgement(spent.whose), spent.model_dump_json().encode())
        self.ledger.judgements(spent.whose, spent.judgements, spent.at)

    def _restore(self) -> None:
        folder = self.layout.preflight_judgements
        for uri in written(self.store.list(folder), folder, JUDGEMENTS):
            spent = read(self.store, uri, Spent)
            self.ledger.judgements(spent.whose, spent.judgements, spent.at)
