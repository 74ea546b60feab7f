"""The metrics of a job's steps and validations that are known so far."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

FIRST_KEPT: Final = 64
LAST_KEPT: Final = 512
"""The first `FIRST_KEPT` and the last `LAST_KEPT` steps are kept: late steps are compared with the first."""

MAX_MAGNITUDE: Final = 1e15
"""A value counts as missing if its magnitude is larger, or if it is NaN."""

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Job:
    """What signals must know of a job besides its metrics."""

    reward_low: float
    reward_high: float
    """Highest reward of spec.reward.range; `reward_low` is the lowest."""
    max_steps_off_policy: int
    max_turns: int | None = None
    """Maximum turns of an episode. None for an agent with a loop of its own."""
    updates_per_batch: int = 1
    """spec.algorithm.updatesPerBatch."""
    sequence_ratio: bool = False
    """Whether importance ratios are computed for whole training rows, as in gspo, and not for tokens."""
    gradient_clip: float = 1.0
    """spec.optimizer.gradientClip; 0 means no clipping."""
    validates: bool = True
    """Whether there are validations during training."""

    @property
    def reward_span(self) -> float:
        """Distance between the worst and the best reward."""
        return self.reward_high - self.reward_low


class Change(Enum):
    """How a new step changes a series."""

    NONE = "none"
    """The step was known already, with equal metrics."""
    NEWEST = "newest"
    """The step is later than all known steps."""
    EARLIER = "earlier"
    """The step is an earlier one that was unknown or had other metrics: later steps must be judged again."""


@dataclass
class Once:
    """The first step at which a condition was true. Each step is tested only once."""

    at: int | None = None
    """The first step at which the condition was true; None if there is none so far."""
    until: int = -1
    """The newest step that was tested."""

    def by(self, step: int) -> bool:
        """Whether the condition was true at `step` or before. The step must have been tested."""
        return self.at is not None and self.at <= step


@dataclass
class Series:
    """Metrics by step, oldest first. A value that is NaN or beyond `MAX_MAGNITUDE` counts as missing."""

    steps: list[int] = field(default_factory=list)
    metrics: list[Metrics] = field(default_factory=list)
    once: dict[str, Once] = field(default_factory=dict)
    """Name of a condition -> the first step at which a judge found it true. Cleared when an earlier step
    changes."""

    def put(self, step: int, metrics: Metrics) -> Change:
        """Add a step. If the step is known already, the new metrics replace the old ones."""
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
    """What a judge may use to judge a step: the metrics of this step and of earlier ones."""

    def __init__(self, job: Job, steps: Series, validations: Series, now: int) -> None:
        self.job = job
        self.now = now
        """The step that is judged."""
        self._steps = steps
        self._validations = validations

    def latest(self, name: str) -> float | None:
        """A metric of the step that is judged; None if it has no such metric."""
        at = bisect_left(self._steps.steps, self.now)
        if at == len(self._steps.steps) or self._steps.steps[at] != self.now:
            return None
        return self._steps.metrics[at].get(name)

    def recent(self, name: str, steps: int, *, until: int | None = None) -> list[float]:
        """A metric of the last `steps` steps up to `until`, oldest first.

        By default, `until` is the step that is judged. Steps without the metric are left out.
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
        """Steps later than `after` and up to `until`, each with its value of a metric."""
        yield from _dated(self._steps, name, after, until)

    def validated(self, name: str) -> list[tuple[int, float]]:
        """Validated steps up to the step that is judged, each with its value of a metric."""
        return [*_dated(self._validations, name, -1, self.now)]

    def once(self, what: str) -> Once:
        """The first step at which the condition `what` was true, among the steps that were tested for it."""
        return self._steps.once.setdefault(what, Once())

    def names(self, prefix: str, steps: int) -> Sequence[str]:
        """Names of the last `steps` steps' metrics that begin with `prefix`, sorted."""
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
