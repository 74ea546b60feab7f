"""Stores and bills what judges cost for the preflight's scripts, and for questions that are asked again.

These questions belong to no episode, so no trajectory has them. A recount of the bill reads the records that
are stored here.
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
    """The record of the questions to judges in one try of a script or of a question."""

    whose: str
    """The try's unique name."""
    at: float
    """When the judges answered, in Unix time. It decides which prices apply."""
    judgements: list[Judgement]


@dataclass
class JudgesBill:
    """The part of one job's bill for judges in its preflight."""

    store: Store
    layout: Layout
    ledger: Ledger
    _blocking: SerialExecutor = field(default_factory=SerialExecutor)

    async def add(self, whose: str, found: Sequence[Judgement]) -> None:
        """Store a try's judgements, then write them into the ledger."""
        await self._blocking(self._add, Spent(whose=whose, at=time.time(), judgements=[*found]))

    async def restore(self) -> None:
        """Write stored judgements into the ledger again, in case a predecessor ended before it did so."""
        await self._blocking(self._restore)

    def _add(self, spent: Spent) -> None:
        self.store.put_new(self.layout.preflight_judgement(spent.whose), spent.model_dump_json().encode())
        self.ledger.judgements(spent.whose, spent.judgements, spent.at)

    def _restore(self) -> None:
        folder = self.layout.preflight_judgements
        for uri in written(self.store.list(folder), folder, JUDGEMENTS):
            spent = read(self.store, uri, Spent)
            self.ledger.judgements(spent.whose, spent.judgements, spent.at)
