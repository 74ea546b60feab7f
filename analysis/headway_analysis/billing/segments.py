"""The ledger's segments, read: events of usage, and the totals that they add up to. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime

from headway_api import prices
from headway_api.accelerators import Holder
from headway_api.bounds import OutOfBoundsError
from headway_api.exits import JobError
from headway_api.records import UsageClass, UsageEvent
from headway_api.stored import parsed

Totals = dict[str, float]
"""Quantity by class. Tokens of models other than the job's own have one quantity for each class and model,
under the name that `prices.of` gives."""
Days = dict[date, Totals]
"""`Totals` by UTC day, which decides the price."""
Usages = list[tuple[date, dict[str, float]]]
"""Each UTC day with its quantities, under the names by which `prices` looks up a price."""


def encode(segment: Sequence[UsageEvent]) -> bytes:
    """A segment as a file, with one event a line."""
    return "".join(f"{event.model_dump_json(exclude_none=True)}\n" for event in segment).encode()


def decode(data: bytes) -> list[UsageEvent]:
    """Inverse of `encode`.

    Raises:
        OutOfBoundsError: the data is not a segment, it is incomplete, or it has an event twice.
    """
    if not data.endswith(b"\n"):
        raise OutOfBoundsError("its last line has no line break, so a part is missing")
    found = [parsed(UsageEvent, line) for line in data.splitlines() if line]
    twice = [each for each, count in Counter(event.id for event in found).items() if count > 1]
    if twice:
        raise OutOfBoundsError(f"event {twice[0]} is in it twice")
    return found


def once(uri: str, segment: Sequence[UsageEvent], first: dict[str, str]) -> None:
    """Check that a segment shares no event with another one.

    Args:
        uri: where the segment is stored.
        segment: its events.
        first: first event's id -> segment's uri, for the earlier segments. This segment is added.

    Raises:
        JobError: `LedgerDuplicated`: another segment has the same first event.
    """
    for event in segment[:1]:  # a copied segment repeats the first event too
        if (other := first.setdefault(event.id, uri)) != uri:
            raise duplicated(other, uri, event.id)


def fold(segment: Iterable[UsageEvent], start: Days | None = None) -> Days:
    """Add events to `start`, which is left as it is. Their order does not matter beyond rounding."""
    days = {day: dict(totals) for day, totals in (start or {}).items()}
    for event in segment:
        totals = days.setdefault(datetime.fromtimestamp(event.at, UTC).date(), {})
        name = prices.of(event.usage_class, event.model)
        totals[name] = totals.get(name, 0.0) + event.quantity
    return days


def by_name(days: Days, held_seconds: Mapping[date, Mapping[Holder, float]]) -> Usages:
    """Usage by day, under the names that have prices. Accelerator seconds are split by product."""
    found: Usages = []
    for day, totals in days.items():
        used = {str(name): quantity for name, quantity in totals.items()}
        if parts := held_seconds.get(day):
            del used[UsageClass.ACCELERATOR_SECONDS.value]
            for whose, seconds in parts.items():
                name = prices.of_accelerator(whose.product)
                used[name] = used.get(name, 0.0) + seconds
        found.append((day, used))
    return found


def fold_accelerators(
    segment: Iterable[UsageEvent], start: Mapping[date, Mapping[Holder, float]]
) -> dict[date, dict[Holder, float]]:
    """Add the accelerator seconds among events to `start`, which is left as it is."""
    days = {day: dict(totals) for day, totals in start.items()}
    for event in segment:
        if (whose := holder(event)) is not None:
            totals = days.setdefault(datetime.fromtimestamp(event.at, UTC).date(), {})
            totals[whose] = totals.get(whose, 0.0) + event.quantity
    return days


def duplicated(one: str, other: str, event: str) -> JobError:
    """The error for two segments that hold the same event, which the bill would count twice."""
    return JobError(
        "LedgerDuplicated",
        f"{one} and {other} both have the usage event {event}: delete the one that the job did not write, "
        "or move it out of the folder",
        field="spec.output.uri",
    )


def total(days: Mapping[date, Mapping[str, float]]) -> dict[UsageClass, float]:
    """Quantity by class, over all models. A class without usage has 0."""
    found = dict.fromkeys(UsageClass, 0.0)
    for totals in days.values():
        for name, quantity in totals.items():
            found[UsageClass(prices.class_of(name))] += quantity
    return found


def holder(event: UsageEvent) -> Holder | None:
    """The role whose accelerator seconds an event counts; None if it counts something else."""
    if event.usage_class is not UsageClass.ACCELERATOR_SECONDS:
        return None
    return Holder(event.role or "other", event.product or "other")
