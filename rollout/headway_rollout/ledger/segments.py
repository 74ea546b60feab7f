"""The ledger in the artifact store: one immutable segment a group and a step, and the totals they add up to.

A segment is written once and never changed, so writing it again after a crash is harmless: whichever came
first stands. The totals in memory are a projection; at a restart they are rebuilt from the segments alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime

from headway_api.artifacts import Layout
from headway_api.records import GroupRecord, StepReport, UsageClass, UsageEvent
from headway_api.store import Store
from headway_rollout.ledger import events

Totals = dict[UsageClass, float]
Days = dict[date, Totals]
"""Quantity by UTC day, which decides the price, and class."""


def encode(segment: Sequence[UsageEvent]) -> bytes:
    """One event a line."""
    return "".join(f"{event.model_dump_json()}\n" for event in segment).encode()


def decode(data: bytes) -> list[UsageEvent]:
    """Inverse of `encode`."""
    return [UsageEvent.model_validate_json(line) for line in data.splitlines() if line]


class Ledger:
    """Events of a job, each counted once.

    Invariant: an id is in `_seen` exactly when its event is both in the store and in `days`. Blocking calls:
    run them in a thread, one at a time.
    """

    def __init__(self, store: Store, layout: Layout) -> None:
        self._store = store
        self._layout = layout
        self._seen: set[str] = set()
        self.days: Days = {}
        self.episodes = 0
        """Training episodes that were billed: completed, truncated or failed by the agent's own fault."""

    def load(self) -> None:
        """Read every segment there is."""
        for uri in self._store.list(self._layout.usage):
            self._count(decode(self._store.get(uri)))

    def group(self, group: GroupRecord) -> None:
        """Write down a finished group."""
        self._write(self._layout.usage_of_group(group.key), events.of_group(group))

    def step(self, report: StepReport, at: float) -> None:
        """Write down an acknowledged step."""
        self._write(self._layout.usage_of_step(report.step), events.of_step(report, at))

    def _write(self, uri: str, segment: list[UsageEvent]) -> None:
        if all(event.id in self._seen for event in segment):
            return
        if not self._store.put_new(uri, encode(segment)):
            segment = decode(self._store.get(uri))
        self._count(segment)

    def _count(self, segment: Iterable[UsageEvent]) -> None:
        fresh = [event for event in segment if event.id not in self._seen]
        self._seen.update(event.id for event in fresh)
        self.days = fold(fresh, self.days)
        self.episodes += sum(events.is_training_episode(event) for event in fresh)


def fold(segment: Iterable[UsageEvent], start: Days | None = None) -> Days:
    """Add events to `start`, which is left as it is. Their order does not matter beyond rounding."""
    days = {day: dict(totals) for day, totals in (start or {}).items()}
    for event in segment:
        totals = days.setdefault(datetime.fromtimestamp(event.at, UTC).date(), {})
        totals[event.usage_class] = totals.get(event.usage_class, 0.0) + event.quantity
    return days


def total(days: Days) -> Totals:
    """Quantity by class, every class named."""
    return {name: sum(totals.get(name, 0.0) for totals in days.values()) for name in UsageClass}
