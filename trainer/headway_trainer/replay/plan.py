"""Chooses the checkpoint, the steps and the batches from which a step is trained again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from headway_api.exits import JobError
from headway_api.in_force import InForce
from headway_api.record import Record
from headway_api.records import Batch, GroupRecord, StepReport
from headway_api.staleness import idle_steps

NAMED = 3
"""Maximum names in a message."""


class ReplayPlan(Record):
    """The steps that lead to a step."""

    start: int | None
    """Step of the checkpoint to begin with; None: the model itself."""
    reports: list[StepReport]
    """The run's reports of the steps to train, in their order; the last one is the requested step."""
    saved: list[int]
    """Steps among them that a later one goes back to: their state is kept meanwhile."""
    idle: list[int]
    """Steps of the run without groups."""
    processes: int
    """Ranks to train on."""
    first: StepReport | None
    """The run's report of step 0, if the plan begins with the model itself."""

    @property
    def groups(self) -> list[str]:
        """Ids of all groups that the plan trains."""
        return [group for report in self.reports for group in report.groups]


def plan_replay(
    reports: Sequence[StepReport], kept: Collection[int], step: int, processes: int = 1
) -> ReplayPlan:
    """The fewest steps that lead to `step`.

    Args:
        reports: the run's reports that are still valid.
        kept: steps whose checkpoints can be used. If there is none before `step`, start from the model
            itself.
        processes: as in the plan.
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
    """Refuse a plan if the spool lacks a group that it trains.

    Args:
        there: ids of the groups in the spool.
    Raises:
        JobError: `GroupsGone`.
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

    A refused directive changed nothing, so the batch has none. A directive that was carried out goes back to
    the same checkpoint as it did then.

    Args:
        groups: those of the step, in the order of its report.
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
    """`in_force` without the objective's settings: nothing then overrides a changed spec's algorithm."""
    return in_force.model_copy(update={"loss": None, "clip": None, "kl": None})
