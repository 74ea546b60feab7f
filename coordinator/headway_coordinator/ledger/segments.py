"""The ledger in the artifact store: one immutable segment for each group and step, and their totals.

A segment is written once and never changed. Writing it again after a crash is harmless, because the first one
is kept. The totals in memory are a projection. A restart rebuilds them from the segments alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from threading import Lock

from headway_analysis.billing.segments import (
    Days,
    Usages,
    by_name,
    decode,
    encode,
    fold,
    fold_accelerators,
    once,
)
from headway_api.accelerators import Holder
from headway_api.artifacts import SEGMENTS, Layout, accelerators_number, written
from headway_api.records import GroupRecord, Judgement, StepReport, UsageEvent
from headway_api.store import ObjectNotFoundError, Store
from headway_api.stored import read_each
from headway_coordinator.bounds import GIVEN_UP
from headway_coordinator.ledger import events


class Ledger:
    """Events of a job, each counted once.

    Invariant: a segment is in `_seen` exactly when it is in the store and its events are in `days`. Blocking
    calls: run them in a thread. Calls for groups and steps must run one at a time. `accelerators` may run
    beside them.
    """

    def __init__(self, store: Store, layout: Layout) -> None:
        self._store = store
        self._layout = layout
        self._seen: set[str] = set()
        """URIs of counted segments. A job has too many events to remember each id, and no two segments share
        an event."""
        self._counting = Lock()
        self.loaded = False
        """Whether every earlier segment has been counted."""
        self.days: Days = {}
        self.accelerator_seconds: dict[date, dict[Holder, float]] = {}
        """The accelerator seconds in `days`, by role and product."""
        self._accelerator_segments = 0
        self.counted = 0
        """Increases at every count. If it is unchanged, everything else is too."""
        self.episodes = 0
        """Training episodes that were billed: completed, truncated, or failed by the agent's own fault."""
        self.on_events: Callable[[Sequence[UsageEvent]], None] = lambda events: None
        """Called with every event once it is counted, by the thread that counts it."""

    def load(self) -> None:
        """Read every segment."""
        folder = self._layout.usage
        uris = written(self._store.list(folder), folder, SEGMENTS)
        first: dict[str, str] = {}
        for uri, found in zip(uris, read_each(self._store, uris, decode), strict=True):
            once(uri, found, first)
            self._count({uri: found})
        self.loaded = True

    def group(self, group: GroupRecord) -> None:
        """Write the usage of a finished group.

        If the group is abandoned later, another segment changes its cost to that of an abandoned group.
        """
        uri, meant = self._layout.usage_of_group(group.key), events.of_group(group)
        found = {uri: self._write(uri, meant)}
        given_up = self._layout.usage_of_given_up(group.key)
        late = group.abandoned is not None and group.abandoned.reason in GIVEN_UP
        if late and given_up not in self._seen:
            found[given_up] = self._write(given_up, events.corrections(self._read_stored(uri), meant))
        self._count(found)

    def _read_stored(self, uri: str) -> list[UsageEvent]:
        try:
            return next(read_each(self._store, [uri], decode))
        except ObjectNotFoundError:  # a group without cost has no segment
            return []

    def events(self) -> list[UsageEvent]:
        """Every event, read again from the store."""
        folder = self._layout.usage
        uris = written(self._store.list(folder), folder, SEGMENTS)
        return [event for segment in read_each(self._store, uris, decode) for event in segment]

    def lost(self, groups: Iterable[str]) -> list[str]:
        """The trained groups whose segments are missing, by `GroupRecord.key`. Each of them had a segment."""
        return sorted(key for key in groups if self._layout.usage_of_group(key) not in self._seen)

    def judgements(self, whose: str, found: Sequence[Judgement], at: float) -> None:
        """Write the cost of judges' questions that belong to no group. No two calls have the same `whose`."""
        uri = self._layout.usage_of_group(whose)
        self._count({uri: self._write(uri, [*events.judged(whose, found, at)])})

    def step(self, report: StepReport, at: float) -> None:
        """Write the usage of a step that was taken."""
        uri = self._layout.usage_of_step(report.step)
        self._count({uri: self._write(uri, events.of_step(report, at))})

    def accelerators(self, held_seconds: Mapping[Holder, float], at: float, *, last: bool = False) -> None:
        """Write accelerator seconds that are not counted yet.

        If another process has written this segment meanwhile, that segment is kept and counted.
        """
        number = self._accelerator_segments + 1
        counted = self.accelerator_totals()
        uri = self._layout.usage_of_accelerators(number)
        self._count(
            {uri: self._write(uri, events.of_accelerators(number, counted, held_seconds, at, last=last))}
        )

    def used(self) -> Usages:
        """The usage so far, in the form for prices."""
        with self._counting:
            return by_name(self.days, self.accelerator_seconds)

    def accelerator_totals(self) -> dict[Holder, float]:
        """Accelerator seconds so far, by role and product."""
        found: dict[Holder, float] = {}
        for totals in self.accelerator_seconds.values():
            for whose, seconds in totals.items():
                found[whose] = found.get(whose, 0.0) + seconds
        return found

    def _write(self, uri: str, segment: list[UsageEvent]) -> list[UsageEvent]:
        """Make a segment durable.

        Returns the events to count, from an earlier segment of that name if there is one.
        """
        if not segment or uri in self._seen:
            return []
        if not self._store.put_new(uri, encode(segment)):
            segment = next(read_each(self._store, [uri], decode))
        return segment

    def _count(self, segments: Mapping[str, Sequence[UsageEvent]]) -> None:
        """Count all segments at once, because a bill of only some of them would match no state."""
        found = [event for segment in segments.values() for event in segment]
        kept = [uri for uri, segment in segments.items() if segment]
        with self._counting:
            self._seen.update(kept)
            self.days = fold(found, self.days)
            self.accelerator_seconds = fold_accelerators(found, self.accelerator_seconds)
            self._accelerator_segments = max([self._accelerator_segments, *map(accelerators_number, kept)])
            self.episodes += sum(map(events.training_episodes, found))
            self.counted += 1
        self.on_events(found)
