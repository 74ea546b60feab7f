"""How old a sampled token is: it ages by steps that train, and by no others. Pure.

Coordinator and learner count alike (docs/staleness.md). A step without groups is a remedy's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headway_api.records import StepReport


def idle_steps(reports: Iterable[StepReport]) -> list[int]:
    """Steps without groups, by which nobody ages."""
    return [report.step for report in reports if report.directive is not None]


def newest_return(reports: Sequence[StepReport]) -> int:
    """The newest step that went back to older weights; 0 before any. What was sampled before it is of a
    policy that is gone."""
    return next((report.step for report in reversed(reports) if report.restored is not None), 0)


def as_of(step: int, idle: Iterable[int]) -> int:
    """A step, with the idle ones after it added: what is between it and now are steps that trained."""
    return step + sum(step < other for other in idle)


def lag(sampled: int, trained: int, idle: Iterable[int]) -> int:
    """Steps that trained between the weights of step `sampled` and those that the batch of step `trained`
    begins with."""
    return trained - 1 - as_of(sampled, (step for step in idle if step < trained))
