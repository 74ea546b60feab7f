"""Chooses the checkpoint, the steps and the batches for training a step again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from headway_api.exits import JobError
from headway_api.in_force import InForce
from headway_api.record import Record
from headway_api.records import Batch, GroupRecord, StepReport
from headway_api.staleness import idle_steps

NAMED = 3
"""Maximum number of group ids in a message."""


class ReplayPlan(Record):
    """The steps to train to reach the requested step."""

    start: int | None
    """Step of the checkpoint to begin with; None to begin with the base model."""
    reports: list[StepReport]
    """The run's reports of the steps to train, in their order; the last one is the requested step."""
    saved: list[int]
    """Steps in `reports` to which a later step goes back. The replay saves their states."""
    idle: list[int]
    """Steps of the run without groups."""
    processes: int
    """Number of ranks to train with."""
    first: StepReport | None
    """The run's report of step 0, if the plan begins with the base model."""

    @property
    def groups(self) -> list[str]:
        """Ids of all groups that the plan trains."""
        return [group for report in self.reports for group in report.groups]


def plan_replay(
    reports: Sequence[StepReport], kept: Collection[int], step: int, processes: int = 1
) -> ReplayPlan:
    """The plan with the fewest steps to reach `step`.

    Args:
        reports: the run's reports that are still valid.
        kept: steps whose checkpoints can be used. Without one before `step`, the plan begins with the base
            model.
        processes: number of ranks to train with.
    Raises:
        JobError: `StepNotRecorded`.
    """
    found = {report.step: report for report in reports}
    for start in [*sorted((each for each in kept if each < step), reverse=True), None]:
        wanted = range(1 if start is None else start + 1, step + 1)
        if absent := [each for each in wanted if each not in found]:
            raise JobError(
                "StepNotRecorded",
                f"steps/{absent[0]:06d}.json is missing, so the groups of step {absent[0]} are not known; "
                "copy the whole folder of the run",
            )
        steps = [found[each] for each in wanted]
        returns = {report.restored for report in steps if report.restored is not None}
        if all(each in kept or each > (-1 if start is None else start) for each in returns):
            break
    return ReplayPlan(
        start=start,
        reports=steps,
        saved=sorted(returns.intersection(wanted)),
        idle=idle_steps(reports),
        processes=processes,
        first=found.get(0) if start is None else None,
    )


def require_groups(plan: ReplayPlan, there: Collection[str]) -> None:
    """Check that the spool has every group that the plan trains.

    Args:
        there: ids of the groups in the spool.
    Raises:
        JobError: `GroupsGone`: it lacks some.
    """
    gone = {report.step: missing for report in plan.reports if (missing := _missing(report.groups, there))}
    if not gone:
        return
    step, (*shown,) = next(iter(gone.items()))
    more = f", of {len(shown)}" if len(shown) > NAMED else ""
    raise JobError(
        "GroupsGone",
        f"trajectories/train no longer has groups of step {', '.join(map(str, gone))}: of step {step} "
        f"{', '.join(shown[:NAMED])}{more}; copy them back, or name a step whose groups are kept",
    )


def _missing(groups: Iterable[str], there: Collection[str]) -> list[str]:
    return [group for group in groups if group not in there]


def batch_of(report: StepReport, groups: Sequence[GroupRecord], idle: Sequence[int]) -> Batch:
    """The batch that the learner received for the step of `report`.

    A refused directive changed nothing, so the batch has no directive. A directive that was carried out names
    only the checkpoint to which the run went back.

    Args:
        groups: the groups of the step, in the order of its report.
        idle: steps without groups.
    """
    directive = None if report.refused is not None else report.directive
    if directive is not None:
        restore = [] if report.restored is None else [report.restored]
        directive = directive.model_copy(update={"restore": restore})
    return Batch(
        step=report.step,
        epoch=int(report.metrics.get("training/epoch", 0)),
        groups=list(groups),
        in_force=report.in_force,
        directive=directive,
        idle=[each for each in idle if each < report.step],
    )


def without_algorithm(in_force: InForce) -> InForce:
    """`in_force` without the objective's settings, so that it does not override a changed spec's
    algorithm."""
    return in_force.model_copy(update={"loss": None, "clip": None, "kl": None})
