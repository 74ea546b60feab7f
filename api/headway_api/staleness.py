"""The staleness of a sampled token. Only steps that train count. Pure.

Coordinator and learner count in the same way (docs/staleness.md). A step without groups carries out a remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headway_api.records import StepReport


def idle_steps(reports: Iterable[StepReport]) -> list[int]:
    """Steps without groups, which do not count for staleness."""
    return [report.step for report in reports if report.directive is not None]


def newest_return(reports: Sequence[StepReport]) -> int:
    """The newest step that went back to older weights; 0 if no step did. Everything that was sampled before
    this step is from a discarded policy."""
    return next((report.step for report in reversed(reports) if report.restored is not None), 0)


def as_of(step: int, idle: Iterable[int]) -> int:
    """`step` plus the number of idle steps after it. The difference to the present step then counts only
    steps that trained."""
    return step + sum(step < other for other in idle)


def staleness(sampled: int, trained: int, idle: Iterable[int]) -> int:
    """Number of steps that trained between the weights of step `sampled` and the weights from which step
    `trained` starts."""
    return trained - 1 - as_of(sampled, (step for step in idle if step < trained))
