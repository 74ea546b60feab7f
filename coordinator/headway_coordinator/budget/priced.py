"""Reads prices and usage for a budget, from the price book and the ledger.

Every check of the budget needs both, so the results are cached until book or ledger changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal

from headway_api.prices import PriceBook, Quantity, cost_by_day
from headway_coordinator.ledger.segments import Ledger


def today() -> date:
    """The day now, UTC."""
    return datetime.now(UTC).date()


class Priced:
    """One job's prices in the form for `Account`."""

    def __init__(
        self, ledger: Ledger, book: Callable[[], PriceBook], day: Callable[[], date] = today
    ) -> None:
        """`book`: returns the current price book for the job's model. `day`: returns the current day, UTC."""
        self._ledger = ledger
        self._book = book
        self._day = day
        self._seen: tuple[int, PriceBook] | None = None
        self._spent = Decimal(0)
        self._used: Mapping[str, Quantity] = {}
        self._highest: dict[str, Decimal | None] = {}
        self._of: tuple[date, PriceBook] | None = None

    def highest_price(self, key: str) -> Decimal | None:
        """The highest price of a token or second from today on, because reservations may be used later."""
        now = self._day(), self._book()
        if self._of is None or self._of[0] != now[0] or self._of[1] is not now[1]:
            self._of, self._highest = now, {}
        if key not in self._highest:
            day, book = now
            entries = [book.on(day), *(entry for entry in book.entries if entry.since > day)]
            known = [price for entry in entries if (price := entry.of_one(key)) is not None]
            self._highest[key] = max(known, default=None)
        return self._highest[key]

    def spent(self) -> Decimal:
        """US dollars for everything in the ledger."""
        self._look()
        return self._spent

    def used(self) -> Mapping[str, Quantity]:
        """Usage in the ledger, by key of the bill."""
        self._look()
        return self._used

    def _look(self) -> None:
        now = self._ledger.counted, self._book()
        if self._seen is not None and self._seen[0] == now[0] and self._seen[1] is now[1]:
            return
        found = self._ledger.used()
        total: Counter[str] = Counter()
        for _, used in found:
            total.update(used)
        self._seen, self._used, self._spent = now, total, cost_by_day(found, now[1])
