"""A low, a likely and a high value, and sums of such values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Range(NamedTuple):
    """A low, a likely and a high value, in this order."""

    low: float
    likely: float
    high: float

    def plus(self, other: Range) -> Range:
        """The sum of both. Low adds to low, and high to high."""
        return Range(self.low + other.low, self.likely + other.likely, self.high + other.high)

    def times(self, count: Range) -> Range:
        """The product of both. Low multiplies low, and high multiplies high."""
        return Range(self.low * count.low, self.likely * count.likely, self.high * count.high)

    def spread(self, factor: float) -> Range:
        """The same likely value, with `low` divided by the factor and `high` multiplied by it."""
        return Range(self.low / factor, self.likely, self.high * factor)


Usage = Mapping[str, Range]
"""Quantity by class of the bill: tokens or seconds."""
NOTHING = Range(0.0, 0.0, 0.0)


def exactly(value: float) -> Range:
    """A known value: low, likely and high are equal."""
    return Range(value, value, value)


def ordered(low: float, likely: float, high: float) -> Range:
    """A range in order, finite and not below 0. A valid likely value stays, and the ends are moved to fit."""
    middle = likely if math.isfinite(likely) and likely > 0 else 0.0
    least = low if math.isfinite(low) else 0.0
    maximum = high if math.isfinite(high) else middle
    return Range(max(0.0, min(least, middle)), middle, max(middle, maximum))


def middle(low: float, high: float) -> float:
    """The geometric mean of both ends: the likely value if only the ends are known."""
    return math.sqrt(max(0.0, low) * max(0.0, high))


def added(parts: Iterable[Usage]) -> dict[str, Range]:
    """Usage of several parts together."""
    found: dict[str, Range] = {}
    for part in parts:
        for name, amount in part.items():
            found[name] = found.get(name, NOTHING).plus(amount)
    return found


def multiplied(usage: Usage, count: Range) -> dict[str, Range]:
    """Each quantity of `usage`, multiplied by `count`."""
    return {name: amount.times(count) for name, amount in usage.items()}
