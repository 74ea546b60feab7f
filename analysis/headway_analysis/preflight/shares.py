"""Shares with intervals, numbers of episodes that suffice, and evidence that may be tested at any time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scipy.special import betaincinv

TAIL: Final = 0.025
"""Probability outside each end of an interval."""
ALPHA: Final = 0.05
"""Largest probability that evidence is wrong."""
CERTAIN: Final = 1 / ALPHA
"""Evidence is certain from this value on. By chance, a test martingale reaches it with a probability of at
most `ALPHA`, however often it is tested (Ville 1939)."""


@dataclass(frozen=True)
class Share:
    """A share of trials that hit, with Clopper and Pearson's (1934) 95 % interval."""

    value: float
    low: float
    high: float
    hits: int
    total: int

    def __str__(self) -> str:
        return f"{self.hits} of {self.total} ({self.low:.0%} to {self.high:.0%})"


def share(hits: int, total: int) -> Share:
    """`hits` of `total` trials as a share. Without trials the interval is 0 to 1."""
    if total <= 0:
        return Share(0.0, 0.0, 1.0, 0, 0)
    low = float(betaincinv(hits, total - hits + 1, TAIL)) if hits else 0.0
    high = float(betaincinv(hits + 1, total - hits, 1 - TAIL)) if hits < total else 1.0
    return Share(hits / total, low, high, hits, total)


def enough_without(rate: float, tail: float = ALPHA) -> int:
    """How many trials without any hit show, with an error of `tail`, that the true rate is below `rate`."""
    return math.ceil(math.log(tail) / math.log1p(-rate))


def enough_with(rate: float) -> int:
    """How many trials, if all of them hit, put the lower bound of `share` above `rate`."""
    return math.floor(math.log(TAIL) / math.log(rate)) + 1


def evidence_below(hits: int, total: int, rate: float, instead: Sequence[tuple[float, float]]) -> float:
    """Evidence that trials hit less often than `rate`, as a test martingale (Wald 1945; Ville 1939).

    The evidence is the likelihood under rates below `rate`, divided by the likelihood under `rate`. Its mean
    never grows if the true rate is `rate` or more. So it may be tested after every trial: it then reaches
    `CERTAIN` with a probability of at most `ALPHA`.

    Args:
        hits: number of trials that hit.
        total: number of trials.
        rate: the rate to compare with.
        instead: (rate, weight) of rates below `rate`; the weights add up to 1.
    """
    misses = total - hits
    return math.fsum(
        weight * _power(other / rate, hits) * _power((1 - other) / (1 - rate), misses)
        for other, weight in instead
    )


def evidence_above(hits: int, total: int, rate: float, instead: Sequence[tuple[float, float]]) -> float:
    """Evidence that trials hit more often than `rate`: `evidence_below` with hits and misses swapped."""
    mirrored = [(1 - other, weight) for other, weight in instead]
    return evidence_below(total - hits, total, 1 - rate, mirrored)


def whole_groups(episodes: int, group_size: int, rows: int) -> int:
    """The number of episodes in whole groups: at least `episodes`, and at least one group for each row."""
    size = max(1, group_size)
    return max(math.ceil(episodes / size), rows) * size


def _power(base: float, exponent: int) -> float:
    if base == 0:
        return float(exponent == 0)
    return math.exp(min(exponent * math.log(base), 700.0))


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value, from 1. Equal values all get the mean of their ranks."""
    order = sorted(range(len(values)), key=lambda at: values[at])
    found = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for at in order[start : end + 1]:
            found[at] = (start + end) / 2 + 1
        start = end + 1
    return found


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's (1904) correlation; None if a sequence is constant or empty."""
    a, b = ranks(first), ranks(second)
    if not a:
        return None
    middle = (len(a) + 1) / 2
    top = math.fsum((x - middle) * (y - middle) for x, y in zip(a, b, strict=True))
    bottom = math.sqrt(math.fsum((x - middle) ** 2 for x in a) * math.fsum((y - middle) ** 2 for y in b))
    return top / bottom if bottom else None


def quantile(values: Sequence[float], part: float) -> float:
    """The smallest value that at least the share `part` of all values does not exceed; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]
