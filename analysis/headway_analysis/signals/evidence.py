"""The statistics that judges share: shares of episodes or groups, differences of means, and medians."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance

from scipy.special import betaincinv, stdtrit

from headway_analysis.signals.definition import Level
from headway_analysis.signals.history import History

EPISODES = "training/num_trajectories"
TAIL = 0.025
RARE = 0.005
"""Probability outside each end of a share's interval. It is small, because shares are tested at every step in
several windows."""
NO_SPREAD = 1e-30
"""A variance below this is only rounding error, and counts as 0."""


@dataclass(frozen=True)
class Share:
    """A share of the episodes, or of the groups, of several steps."""

    value: float
    low: float
    """Lower bound of Clopper and Pearson's (1934) 99 % interval. It treats groups as independent. For
    episodes, their number is first divided by the design effect."""
    high: float
    """Upper bound of the same interval."""
    total: float
    """Number of episodes or groups."""


def pooled(history: History, name: str, steps: int) -> Share | None:
    """A rate of episodes over the last steps, each step weighted by its number of episodes.

    Episodes of a batch are alike, as one policy sampled them. So the interval is computed from their number
    divided by the design effect (Rao and Scott 1992).
    """
    both = _paired(history, name, EPISODES, steps)
    hits, total = sum(rate * count for rate, count in both), sum(count for _, count in both)
    return _share(hits, total, design_effect(both))


def design_effect(batches: Sequence[tuple[float, float]]) -> float:
    """How much more the rates of batches vary than those of independent episodes would: a factor, at least 1.

    It is Pearson's statistic divided by its degrees of freedom. `batches`: rate and number of episodes of
    each batch.
    """
    total = sum(count for _, count in batches)
    rate = sum(each * count for each, count in batches) / total if total else 0.0
    if len(batches) < 2 or not 0 < rate < 1:
        return 1.0
    spread = sum(count * (each - rate) ** 2 for each, count in batches) / (rate * (1 - rate))
    return max(1.0, spread / (len(batches) - 1))


def counted(history: History, name: str, of: str, steps: int) -> Share | None:
    """The metric `name`, a count over the last steps, as a share of the count `of`."""
    both = _paired(history, name, of, steps)
    return _share(sum(count for count, _ in both), sum(total for _, total in both))


def _paired(history: History, name: str, counts: str, steps: int) -> list[tuple[float, float]]:
    """Value and count of each of the last steps. Steps whose count is 0 or missing are left out."""
    found = dict(history.dated(name, history.now - steps, history.now))
    counted = dict(history.dated(counts, history.now - steps, history.now))
    return [(found[step], counted[step]) for step in found if counted.get(step, 0) > 0]


def _share(hits: float, total: float, effect: float = 1.0) -> Share | None:
    if not total:
        return None
    value = min(1.0, max(0.0, hits / total))
    count = total / effect
    hits = value * count
    low = float(betaincinv(hits, count - hits + 1, RARE)) if value > 0 else 0.0
    high = float(betaincinv(hits + 1, count - hits, 1 - RARE)) if value < 1 else 1.0
    return Share(value, low, high, total)


@dataclass(frozen=True)
class Shift:
    """How far the mean of recent values is above the mean of earlier values."""

    value: float
    low: float
    """Lower bound of the difference's 95 % interval."""
    high: float
    """Upper bound of the same interval."""

    @property
    def rises(self) -> bool:
        """Whether the difference is surely above 0."""
        return self.low > 0

    @property
    def falls(self) -> bool:
        """Whether the difference is surely below 0."""
        return self.high < 0


def shift(earlier: Sequence[float], recent: Sequence[float]) -> Shift | None:
    """The mean of `recent` minus the mean of `earlier`, with Welch's (1947) 95 % interval.

    None if either has fewer than two values.
    """
    if min(len(earlier), len(recent)) < 2:
        return None
    value = fmean(recent) - fmean(earlier)
    parts = [variance(values) / len(values) for values in (earlier, recent)]
    total = sum(parts)
    if total < NO_SPREAD:
        return Shift(value, value, value)
    counts = (len(earlier), len(recent))
    freedom = total**2 / sum(part**2 / (count - 1) for part, count in zip(parts, counts, strict=True))
    half = float(stdtrit(freedom, 1 - TAIL)) * math.sqrt(total)
    return Shift(value, value - half, value + half)


def level(values: Sequence[float], least: int) -> float | None:
    """The median, which resists an outlier; None with fewer than `least` values."""
    return median(values) if len(values) >= least else None


def above(value: float, threshold: float, clear: float) -> Level:
    """The level of a number that is bad when large: over above `threshold`, clear at `clear` or less."""
    return Level.OVER if value > threshold else Level.CLEAR if value <= clear else Level.BETWEEN


def below(value: float, threshold: float, clear: float) -> Level:
    """The level of a number that is bad when small: over below `threshold`, clear at `clear` or more."""
    return Level.OVER if value < threshold else Level.CLEAR if value >= clear else Level.BETWEEN
