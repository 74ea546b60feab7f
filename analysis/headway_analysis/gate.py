"""Whether a candidate may be promoted: a pure verdict over the tries of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


@dataclass(frozen=True)
class Bound:
    """A metric, and how much worse than the baseline it may be."""

    metric: str
    margin: float = 0.0


@dataclass(frozen=True)
class GateSpec:
    """What must hold of `candidate`; every condition that is given must."""

    candidate: str
    metric: str = "external_score"
    task: str = "all"
    """Task that is judged; `all` takes every row."""
    minimum: float | None = None
    """Lowest value of `metric` that passes."""
    minimum_of: Literal["LowerBound", "Value"] = "LowerBound"
    """What is held against `minimum`: the lower end of the 95 % interval, or the value itself."""
    must_beat: str | None = None
    """Baseline candidate. The lower end of the paired difference's 95 % interval must be above `margin`."""
    margin: float = 0.0
    no_worse: Sequence[Bound] = ()
    """Further metrics. The difference's lower end must be above -margin, in the direction that is better."""
    baseline: str | None = None
    """Baseline of `no_worse` where `must_beat` names none."""


class Verdict(StrEnum):
    """What a gate, or one of its conditions, comes to."""

    PASSED = "Passed"
    REFUSED = "Refused"
    TOO_FEW_ROWS = "TooFewRows"
    """The value is good enough, but the rows cannot show that it is no accident."""
    ERROR = "Error"
    """The gate cannot be judged: it names a metric, candidate or task that nothing reports."""


@dataclass(frozen=True)
class Check:
    """One condition of the gate."""

    verdict: Verdict
    message: str
    """For a person; has the value, the interval, the bound and the rows."""


@dataclass(frozen=True)
class Judgment:
    """The gate's verdict: its worst condition's."""

    verdict: Verdict
    message: str
    checks: tuple[Check, ...]
