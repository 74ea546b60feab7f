"""The metrics of a job's steps and validations, as far as they are known."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

FIRST_KEPT: Final = 64
LAST_KEPT: Final = 512
"""Numbers of first and of last steps that are kept: late steps are compared with the first ones."""

MAX_MAGNITUDE: Final = 1e15
"""A value beyond it, or NaN, counts as missing."""

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Job:
    """What signals must know of a job besides its metrics."""

    reward_low: float
    reward_high: float
    """spec.reward.range."""
    max_steps_off_policy: int
    max_turns: int | None = None
    """None for an agent with a loop of its own."""
    updates_per_batch: int = 1
    """spec.algorithm.updatesPerBatch."""
    sequence_ratio: bool = False
    """Whether the ratio is that of a whole training row and not of a token, as in gspo."""
    gradient_clip: float = 1.0
    """spec.optimizer.gradientClip; 0 does not clip."""
    validates: bool = True
    """Whether validations go on during training."""

    @property
    def reward_span(self) -> float:
        """Distance between the worst and the best reward."""
        return self.reward_high - self.reward_low


class Change(Enum):
    """How a new step changes a series."""

    NONE = "none"
    """The step was known, with equal metrics."""
    NEWEST = "newest"
    """The step follows all others."""
    EARLIER = "earlier"
    """An earlier step is new or has other metrics: later steps must be judged again."""


@dataclass
class Once:
    """When something first held. Each step is looked at only once."""

    at: int | None = None
    """The first step at which it held."""
    until: int = -1
    """The newest step that was looked at."""

    def by(self, step: int) -> bool:
        """Whether it held at a step or before. The step must have been looked at."""
        return self.at is not None and self.at <= step


@dataclass
class Series:
    """Metrics by step, oldest first. Values that are not numbers, or are absurd, count as missing."""

    steps: list[int] = field(default_factory=list)
    metrics: list[Metrics] = field(default_factory=list)
    once: dict[str, Once] = field(default_factory=dict)
    """What judges have found in these steps so far. It is forgotten when an earlier step changes."""

    def put(self, step: int, metrics: Metrics) -> Change:
        """Add a step. If a step comes again, its last metrics count."""
        known = {name: value for name, value in metrics.items() if abs(value) <= MAX_MAGNITUDE}
        at = bisect_left(self.steps, step)
        if at == len(self.steps):
            self.steps.append(step)
            self.metrics.append(known)
            if len(self.steps) > FIRST_KEPT + LAST_KEPT:
                del self.steps[FIRST_KEPT], self.metrics[FIRST_KEPT]
            return Change.NEWEST
        if self.steps[at] != step:
            self.steps.insert(at, step)
            self.metrics.insert(at, known)
        elif self.metrics[at] != known:
            self.metrics[at] = known
        else:
            return Change.NONE
        self.once.clear()
        return Change.EARLIER


class History:
    """What was known when a step was judged: that step and those before it."""

    def __init__(self, job: Job, steps: Series, validations: Series, now: int) -> None:
        self.job = job
        self.now = now
        """The step that is judged."""
        self._steps = steps
        self._validations = validations

    def latest(self, name: str) -> float | None:
        """A metric of the step that is judged."""
        at = bisect_left(self._steps.steps, self.now)
        if at == len(self._steps.steps) or self._steps.steps[at] != self.now:
            return None
        return self._steps.metrics[at].get(name)

    def recent(self, name: str, steps: int, *, until: int | None = None) -> list[float]:
        """A metric of the last `steps` steps up to `until` (the one that is judged), oldest first.

        Steps that are missing, or do not have it, are left out.
        """
        last = self.now if until is None else until
        return [value for _, value in self.dated(name, last - steps, last)]

    def first(self, name: str, count: int) -> list[float]:
        """The first `count` values of a metric."""
        found = []
        for _, value in self.dated(name, -1, self.now):
            found.append(value)
            if len(found) == count:
                break
        return found

    def dated(self, name: str, after: int, until: int) -> Iterator[tuple[int, float]]:
        """Steps above `after` up to `until`, with their value of a metric."""
        yield from _dated(self._steps, name, after, until)

    def validated(self, name: str) -> list[tuple[int, float]]:
        """Validated steps up to the one that is judged, with their value of a metric."""
        return [*_dated(self._validations, name, -1, self.now)]

    def once(self, what: str) -> Once:
        """When something first held in these steps, as far as they were looked at for it."""
        return self._steps.once.setdefault(what, Once())

    def names(self, prefix: str, steps: int) -> Sequence[str]:
        """Metrics of the last `steps` steps whose names begin so, in order."""
        low, high = self._between(self._steps, self.now - steps, self.now)
        found = {name for known in self._steps.metrics[low:high] for name in known}
        return sorted(name for name in found if name.startswith(prefix))

    @staticmethod
    def _between(series: Series, after: int, until: int) -> tuple[int, int]:
        return bisect_left(series.steps, after + 1), bisect_left(series.steps, until + 1)


def _dated(series: Series, name: str, after: int, until: int) -> Iterator[tuple[int, float]]:
    low, high = bisect_left(series.steps, after + 1), bisect_left(series.steps, until + 1)
    for at in range(low, high):
        value = series.metrics[at].get(name)
        if value is not None:
            yield series.steps[at], value
