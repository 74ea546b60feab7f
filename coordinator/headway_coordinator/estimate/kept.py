"""The estimate of the whole job's usage and cost: in status, metrics and the report.

Estimates of the bases in `KEPT` are stored in the artifact store, so that the report can compare them with
the bill. Each is made before the job's own episodes. The first one written is kept through every restart.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, Generic, TypeVar

from headway_analysis.billing.segments import Days, by_name, fold, fold_accelerators
from headway_analysis.estimate.made import Made, compared
from headway_analysis.estimate.whole import Basis, Estimate, Spent
from headway_api import logs
from headway_api import status as st
from headway_api.accelerators import Holder
from headway_api.artifacts import Layout
from headway_api.exits import JobError
from headway_api.prices import Tariff
from headway_api.records import UsageEvent
from headway_api.store import ObjectNotFoundError, Store
from headway_api.stored import read
from headway_coordinator.estimate.made import of_status
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.metrics.prometheus import Sample

KEPT: Final[tuple[Basis, ...]] = ("Data", "Preflight")
"""Bases whose estimate is made only once."""
T = TypeVar("T")
_log = logging.getLogger(__name__)


class Estimates(ABC, Generic[T]):
    """The estimates of one job. T is the type of its progress."""

    def __init__(
        self,
        layout: Layout,
        store: Store,
        ledger: Ledger,
        tariff: Callable[[], Tariff],
        previous: st.Estimate | None,
    ) -> None:
        """`tariff`: the job's current prices. `previous`: the estimate in a predecessor's status."""
        self._layout = layout
        self._store = store
        self._ledger = ledger
        self._tariff = tariff
        self._since = previous.time if previous is not None and previous.basis == "Running" else None
        self._made: dict[Basis, Made] = {}
        self._learning = threading.RLock()
        self._days: Days = {}
        self._accelerator_seconds: dict[date, dict[Holder, float]] = {}
        """Accelerator seconds in the ledger. They change together with the events for `_learn`, so that
        neither is ahead."""
        ledger.on_events = self._on_events

    def _on_events(self, events: Sequence[UsageEvent]) -> None:
        """Read events that were written to the ledger, from any thread."""
        with self._learning:
            self._days, self._accelerator_seconds = (
                fold(events, self._days),
                fold_accelerators(events, self._accelerator_seconds),
            )
            self._learn(events)

    @abstractmethod
    def _learn(self, events: Sequence[UsageEvent]) -> None:
        """Learn the episodes' usage from events. No two calls run at the same time."""

    @abstractmethod
    def newest(self, of: T | None) -> Made | None:
        """The current estimate; None before there is one. `of`: the job's progress."""

    def price(self, key: str) -> Decimal | None:
        """Today's price of a token or second."""
        return self._tariff().price(key, datetime.now(UTC).date())

    def status(self, of: T | None) -> st.Estimate | None:
        """The estimate as status shows it."""
        found = self.newest(of)
        return None if found is None else of_status(found)

    def samples(self, of: T | None) -> Iterator[Sample]:
        """The estimate for Prometheus."""
        found = self.newest(of)
        if found is not None and found.cost is not None:
            for bound, amount in zip(("low", "likely", "high"), found.cost, strict=True):
                yield Sample("estimate/cost_usd", float(amount), {"bound": bound})

    def report(self, usage: st.Usage) -> dict[str, Any]:
        """The estimates, beside the actual usage."""
        actual = Decimal(usage.cost or "0")
        made = [self._made[basis] for basis in KEPT if basis in self._made]
        return {"actual": usage.cost, "made": [compared(each, actual) for each in made]}

    def _restore(self) -> None:
        """Read back a predecessor's estimates. Blocking."""
        for basis in KEPT:
            try:
                found = read(self._store, self._layout.estimate(basis.lower()), Made)
            except ObjectNotFoundError:
                continue
            except JobError as error:
                logs.event(_log, "estimate-unreadable", level=logging.WARNING, error=str(error))
                continue
            self._made[found.basis] = found

    def _keep(self, found: Estimate) -> None:
        """Store an estimate for the report. Blocking."""
        made = self._as_made(found, datetime.now(UTC))
        self._store.put_new(self._layout.estimate(found.basis.lower()), made.model_dump_json().encode())
        self._made[found.basis] = made

    def _as_made(self, found: Estimate, began: datetime) -> Made:
        """An estimate by today's prices. `began`: when its basis began."""
        return Made.of(found, began, self._tariff().edition(datetime.now(UTC).date()))

    def _as_running(self, found: Estimate) -> Made:
        """An estimate from played episodes. Its basis began when the first such estimate was made."""
        self._since = self._since or datetime.now(UTC)
        return self._as_made(found, self._since)

    def _spent(self, seconds: float) -> Spent:
        """Usage in the ledger. `seconds`: since the first episode began."""
        with self._learning:
            found = by_name(self._days, self._accelerator_seconds)
        used: dict[str, float] = {}
        for _, amounts in found:
            for key, much in amounts.items():
                used[key] = used.get(key, 0.0) + much
        return Spent(used, self._tariff().cost(found), seconds)
