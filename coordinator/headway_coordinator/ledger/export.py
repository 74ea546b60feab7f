"""The ledger's exports in the artifact store: a file of CloudEvents and a FOCUS-style table for each day.

They are made from the segments again, at the end of each day and of the job. A new file replaces the old one,
and has the same content for the same events.
"""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from headway_analysis.billing import cloudevents, focus
from headway_analysis.report.table import parquet
from headway_api.artifacts import Layout
from headway_api.config import Identity
from headway_api.prices import PriceBook, of
from headway_api.records import UsageClass
from headway_api.store import Store
from headway_coordinator.ledger.segments import Ledger


def write(job: Identity, store: Store, layout: Layout, ledger: Ledger, book: PriceBook) -> int:
    """Write every day's files. Returns how many days there are. Blocking.

    Raises:
        JobError: a segment cannot be read; then no file is written, because the bill would be incomplete.
    """
    by_day = cloudevents.by_day(ledger.events())

    def price(usage_class: UsageClass, day: date, whose: str | None) -> Decimal | None:
        return book.on(day).of_one(of(usage_class.value, whose))

    rows = [*focus.rows(job, focus.used(ledger.days, ledger.accelerator_seconds), price, book.edition)]
    for day, events in sorted(by_day.items()):
        store.put(layout.cloud_events(day), cloudevents.lines(job, events))
        found = [row for row in rows if row["ChargePeriodStart"] == f"{day}T00:00:00Z"]
        store.put(layout.focus(day), focus.table(found))
        store.put(layout.focus_parquet(day), parquet(focus.arrow(found)))
    return len(by_day)
