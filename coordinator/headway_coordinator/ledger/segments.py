"""The ledger in the artifact store: one immutable segment a group and a step, and the totals they add up to.

A segment is written once and never changed, so writing it again after a crash is harmless: whichever came
first stands. The totals in memory are a projection; at a restart they are rebuilt from the segments alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime

from headway_api.artifacts import SEGMENTS, Layout, written
from headway_api.records import GroupRecord, Judgement, StepReport, UsageClass, UsageEvent
from headway_api.store import NotFound, Store
from headway_api.stored import parsed, read_each
from headway_coordinator.bounds import GIVEN_UP
from headway_coordinator.ledger import events

Totals = dict[UsageClass, float]
Days = dict[date, Totals]
"""Quantity by UTC day, which decides the price, and class."""


def encode(segment: Sequence[UsageEvent]) -> bytes:
    """One event a line."""
    return "".join(f"{event.model_dump_json()}\n" for event in segment).encode()


def decode(data: bytes) -> list[UsageEvent]:
    """Inverse of `encode`; raises OutOfBounds."""
    return [parsed(UsageEvent, line) for line in data.splitlines() if line]


class Ledger:
    """Events of a job, each counted once.

    Invariant: a segment is in `_seen` exactly when it is in the store and its events are in `days`. Blocking
    calls: run them in a thread, one at a time.
    """

    def __init__(self, store: Store, layout: Layout) -> None:
        self._store = store
        self._layout = layout
        self._seen: set[str] = set()
        """URIs: a job has too many events to remember each by its id, and no two segments share one."""
        self.days: Days = {}
        self.episodes = 0
        """Training episodes that were billed: completed, truncated or failed by the agent's own fault."""

    def load(self) -> None:
        """Read every segment there is."""
        folder = self._layout.usage
        uris = written(self._store.list(folder), folder, SEGMENTS)
        for uri, found in zip(uris, read_each(self._store, uris, decode), strict=True):
            self._count({uri: found})

    def group(self, group: GroupRecord) -> None:
        """Write down a finished group. One given up after it was written down costs what such a one costs."""
        uri, meant = self._layout.usage_of_group(group.key), events.of_group(group)
        found = {uri: self._write(uri, meant)}
        given_up = self._layout.usage_of_given_up(group.key)
        late = group.abandoned is not None and group.abandoned.reason in GIVEN_UP
        if late and given_up not in self._seen:
            found[given_up] = self._write(given_up, events.instead(self._stood(uri), meant))
        self._count(found)

    def _stood(self, uri: str) -> list[UsageEvent]:
        try:
            return next(read_each(self._store, [uri], decode))
        except NotFound:  # it had cost nothing
            return []

    def judgements(self, whose: str, found: Sequence[Judgement], at: float) -> None:
        """Write down what questions to judges cost that belong to no group; `whose` is used once."""
        uri = self._layout.usage_of_group(whose)
        self._count({uri: self._write(uri, [*events.judged(whose, found, at)])})

    def step(self, report: StepReport, at: float) -> None:
        """Write down an acknowledged step."""
        uri = self._layout.usage_of_step(report.step)
        self._count({uri: self._write(uri, events.of_step(report, at))})

    def _write(self, uri: str, segment: list[UsageEvent]) -> list[UsageEvent]:
        """Make a segment durable; what is to be counted by that, of an earlier writing where there is one."""
        if not segment or uri in self._seen:
            return []
        if not self._store.put_new(uri, encode(segment)):
            segment = next(read_each(self._store, [uri], decode))
        return segment

    def _count(self, segments: Mapping[str, Sequence[UsageEvent]]) -> None:
        """At once: a bill in between would be of neither."""
        found = [event for segment in segments.values() for event in segment]
        self._seen.update(uri for uri, segment in segments.items() if segment)
        self.days = fold(found, self.days)
        self.episodes += sum(map(events.training_episodes, found))


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
