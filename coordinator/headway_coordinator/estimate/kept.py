"""What the whole job will use and cost, as far as is known by now: in status, metrics and the report.

What is made before the job has played is kept in the artifact store, so that the report can be held against
it: what was written first stands, through every restart.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, Generic, TypeVar

from headway_analysis.billing.segments import Days, by_name, fold, fold_held
from headway_analysis.estimate.made import Made, compared
from headway_analysis.estimate.whole import Basis, Estimate, Spent
from headway_api import logs
from headway_api import status as st
from headway_api.artifacts import Layout
from headway_api.exits import JobError
from headway_api.held import Holder
from headway_api.prices import Tariff
from headway_api.records import UsageEvent
from headway_api.store import NotFound, Store
from headway_api.stored import read
from headway_coordinator.estimate.made import of_status
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.metrics.prometheus import Sample

KEPT: Final[tuple[Basis, ...]] = ("Data", "Preflight")
"""Bases of which the estimate is made once."""
T = TypeVar("T")
_log = logging.getLogger(__name__)


class Estimates(ABC, Generic[T]):
    """Of one job, of which T says how far it has come."""

    def __init__(
        self,
        layout: Layout,
        store: Store,
        ledger: Ledger,
        tariff: Callable[[], Tariff],
        told: st.Estimate | None,
    ) -> None:
        """`tariff`: the job's prices, as they are now. `told`: what a predecessor's status said."""
        self._layout = layout
        self._store = store
        self._ledger = ledger
        self._tariff = tariff
        self._since = told.time if told is not None and told.basis == "Running" else None
        self._made: dict[Basis, Made] = {}
        self._telling = threading.RLock()
        self._days: Days = {}
        self._held: dict[date, dict[Holder, float]] = {}
        """What the ledger has, with what `_tell` was told: neither is ever ahead of the other."""
        ledger.heard = self._hear

    def _hear(self, events: Sequence[UsageEvent]) -> None:
        """Take in what was written to the ledger, from any thread."""
        with self._telling:
            self._days, self._held = fold(events, self._days), fold_held(events, self._held)
            self._tell(events)

    @abstractmethod
    def _tell(self, events: Sequence[UsageEvent]) -> None:
        """Learn from it what episodes use. No two calls at a time."""

    @abstractmethod
    def newest(self, of: T | None) -> Made | None:
        """The estimate as things stand; None before there is one. `of`: how far the job has come."""

    def price(self, key: str) -> Decimal | None:
        """Today's price of a token or second."""
        return self._tariff().price(key, datetime.now(UTC).date())

    def status(self, of: T | None) -> st.Estimate | None:
        """As status shows it."""
        found = self.newest(of)
        return None if found is None else of_status(found)

    def samples(self, of: T | None) -> Iterator[Sample]:
        """As Prometheus is shown it."""
        found = self.newest(of)
        if found is not None and found.cost is not None:
            for bound, amount in zip(("low", "likely", "high"), found.cost, strict=True):
                yield Sample("estimate/cost_usd", float(amount), {"bound": bound})

    def report(self, usage: st.Usage) -> dict[str, Any]:
        """What was estimated, beside what came of it."""
        actual = Decimal(usage.cost or "0")
        made = [self._made[basis] for basis in KEPT if basis in self._made]
        return {"actual": usage.cost, "made": [compared(each, actual) for each in made]}

    def _restore(self) -> None:
        """Read back what a predecessor kept. Blocking."""
        for basis in KEPT:
            try:
                found = read(self._store, self._layout.estimate(basis.lower()), Made)
            except NotFound:
                continue
            except JobError as error:
                logs.event(_log, "estimate-unreadable", level=logging.WARNING, error=str(error))
                continue
            self._made[found.basis] = found

    def _keep(self, found: Estimate) -> None:
        """Keep it for the report. Blocking."""
        made = self._as_made(found, datetime.now(UTC))
        self._store.put_new(self._layout.estimate(found.basis.lower()), made.model_dump_json().encode())
        self._made[found.basis] = made

    def _as_made(self, found: Estimate, began: datetime) -> Made:
        """An estimate by today's prices. `began`: when its basis did."""
        return Made.of(found, began, self._tariff().edition(datetime.now(UTC).date()))

    def _as_running(self, found: Estimate) -> Made:
        """An estimate from what was played; its basis began with the first one."""
        self._since = self._since or datetime.now(UTC)
        return self._as_made(found, self._since)

    def _spent(self, seconds: float) -> Spent:
        """What the ledger says. `seconds`: since the first episode began."""
        with self._telling:
            found = by_name(self._days, self._held)
        used: dict[str, float] = {}
        for _, amounts in found:
            for key, much in amounts.items():
                used[key] = used.get(key, 0.0) + much
        return Spent(used, self._tariff().cost(found), seconds)
