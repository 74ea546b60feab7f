"""The ledger's exports in the artifact store: a file of CloudEvents and a FOCUS-style table for each day.

They are made anew from the segments, at each change of the day and at the job's end: what is written again
stands in place of what was, and says the same of what was in it.
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
    """Write every day's files; returns how many days there are. Blocking.

    Raises:
        JobError: a segment cannot be read: nothing is written of the bill that it is missing from.
    """
    by_day = cloudevents.by_day(ledger.events())

    def price(usage_class: UsageClass, day: date, whose: str | None) -> Decimal | None:
        return book.on(day).of_one(of(usage_class.value, whose))

    rows = [*focus.rows(job, focus.used(ledger.days, ledger.held), price, book.edition)]
    for day, events in sorted(by_day.items()):
        store.put(layout.cloud_events(day), cloudevents.lines(job, events))
        found = [row for row in rows if row["ChargePeriodStart"] == f"{day}T00:00:00Z"]
        store.put(layout.focus(day), focus.table(found))
        store.put(layout.focus_parquet(day), parquet(focus.arrow(found)))
    return len(by_day)
