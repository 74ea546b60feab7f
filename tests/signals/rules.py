"""When a symptom begins that emerges by itself: rules over raw metrics.

No rule knows a signal's threshold. Some compare a metric with its earlier values in the same run, by halves
and multiples. Others wait until the metric has completed half of its change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median

from tests.signals.circumstances import Metrics, Rule

Holds = Callable[[float], bool]
REWARD = "rollout/reward/mean"
NORMAL = 8
"""First steps of a run, which define a metric's normal value."""


def first(name: str, holds: Holds, steps: Sequence[Metrics], *, after: int = 0, times: int = 1) -> int | None:
    """The first step after `after` from which `holds` is true `times` times in a row.

    A missing value is not.
    """
    row = 0
    for number, metrics in enumerate(steps, 1):
        row = row + 1 if number > after and name in metrics and holds(metrics[name]) else 0
        if row == times:
            return number - times + 1
    return None


def collapses(steps: Sequence[Metrics]) -> int | None:
    """The first step whose mean reward is below a quarter of the best step before it."""
    best = 0.0
    for number, metrics in enumerate(steps, 1):
        if metrics[REWARD] < best / 4:
            return number
        best = max(best, metrics[REWARD])
    return None


def idles(steps: Sequence[Metrics]) -> int | None:
    """The first of three steps in a row in which no group is trained."""
    return first("training/num_trained_groups", lambda value: value == 0, steps, times=3)


def grows(name: str, factor: float, *, after: int = NORMAL) -> Rule:
    """The first step after the first `NORMAL` with a metric at `factor` times their median."""

    def rule(steps: Sequence[Metrics]) -> int | None:
        normal = median(metrics[name] for metrics in steps[:NORMAL] if name in metrics)
        return first(name, lambda value: value >= factor * normal, steps, after=after)

    return rule


def shrinks(name: str, factor: float) -> Rule:
    """The first of three steps in a row, after the first `NORMAL`, at 1/`factor` of their median."""

    def rule(steps: Sequence[Metrics]) -> int | None:
        normal = median(metrics[name] for metrics in steps[:NORMAL] if name in metrics)
        return first(name, lambda value: value <= normal / factor, steps, after=NORMAL, times=3)

    return rule


def reaches(name: str, value: float) -> Rule:
    """The first step with a metric at a value or above."""
    return lambda steps: first(name, lambda found: found >= value, steps)


def at_half(name: str) -> Rule:
    """The first step with a metric at half of its highest value."""
    return lambda steps: reaches(name, max(metrics.get(name, 0.0) for metrics in steps) / 2)(steps)


def half_risen(name: str = REWARD) -> Rule:
    """The first step at which the mean of five steps has completed half of its rise from first to best."""

    def rule(steps: Sequence[Metrics]) -> int | None:
        values = [metrics[name] for metrics in steps]
        means = [fmean(values[max(0, end - 5) : end]) for end in range(1, len(values) + 1)]
        start, best = means[4], max(means[4:])
        middle = start + (best - start) / 2
        return next((n for n, mean in enumerate(means, 1) if n > 5 and mean >= middle), None)

    return rule
