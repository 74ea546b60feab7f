"""Decides about remedies at the moment when the learner asks for its next step.

The learner trains nothing at that moment, so the next step may still become a remedy. A decision is durable
before the learner receives it, and is final for its step. Every request for that step gets it, even after a
restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from headway_analysis.remedies.context import RemedyContext, Validated
from headway_analysis.remedies.course import Course, course
from headway_analysis.remedies.measured import REWARD
from headway_analysis.remedies.policy import decide, obey
from headway_api import logs
from headway_api.decisions import Decision, Kept, RefusedOrder
from headway_api.records import Batch, StepReport
from headway_api.remedies import applied
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator.remedies.journal import Known
from headway_coordinator.scheduler.slots import BatchScheduler
from headway_coordinator.signals import Signals
from headway_coordinator.state import State

Record = Decision | Kept | RefusedOrder
EVENTS: Final[dict[type[Record], str]] = {
    Decision: "remedy-decided",
    Kept: "remedy-kept",
    RefusedOrder: "remedy-order-refused",
}
"""The name of each record in the log."""

_log = logging.getLogger(__name__)


class Remedies:
    """The remedies of one job. Used on the event loop only.

    Args:
        state: the job's state. Its reports show which remedies were taken.
        scheduler: knows how many steps and groups are left.
        signals: may call for a change.
        write: makes a record durable; returns the stored one.
    """

    def __init__(
        self,
        spec: RLTrainingJobSpec,
        state: State,
        scheduler: BatchScheduler,
        signals: Signals,
        write: Callable[[Record], Awaitable[Record]],
    ) -> None:
        self._spec = spec
        self._state = state
        self._scheduler = scheduler
        self._signals = signals
        self._write = write
        self._known = Known()
        self._void: frozenset[int] = frozenset()
        """Numbers of decisions whose steps were taken with groups before the learner was rolled back."""
        self._lock = asyncio.Lock()
        self.course = Course()
        """The remedies so far, with the state of each."""
        self.order: str | None = None
        """A person's order for a remedy, as last read from the job."""
        self.now = spec
        """The spec with all remedies applied."""

    @property
    def busy(self) -> bool:
        """Whether a decision is being made. No batch may be cut meanwhile."""
        return self._lock.locked()

    @property
    def goes_back(self) -> bool:
        """Whether a return to older weights is decided, and no step before it needs newly sampled groups.

        If so, groups sampled now would not be trained.
        """
        first = next((decision for decision in self.course.pending if decision.directive.restore), None)
        if first is None:
            return False
        between = range(self._state.step + 1, first.step)
        return all(step in self._scheduler.undone or self.due(step) is not None for step in between)

    def restore(self, known: Known, undone: Sequence[StepReport] = ()) -> None:
        """Restore the predecessors' decisions. The valid reports are in the state."""
        self._known = known
        trained = {report.step for report in undone if report.directive is None}
        self._void = frozenset(each.number for each in known.decisions.values() if each.step in trained)
        for report in self._state.reports:
            self._update_signals(report)
        self._look()

    def took(self, report: StepReport) -> None:
        """Apply the report of a step without groups, which the state already has."""
        self._update_signals(report)
        self._look()
        refusal = {} if report.refused is None else report.refused.model_dump()
        assert report.directive is not None
        logs.event(
            _log,
            "remedy-refused" if refusal else "remedy-taken",
            level=logging.WARNING,
            step=report.step,
            remedy=report.directive.remedy,
            undo=report.directive.undo,
            restored=report.restored,
            **refusal,
        )

    def due(self, step: int) -> Decision | None:
        """The decided remedy that `step` still has to carry out; None if there is none."""
        return self.course.due(step)

    def batch(self, decision: Decision, *, epoch: int, validating: list[int]) -> Batch:
        """The batch with which the learner carries out a decision."""
        return Batch(
            step=decision.step,
            epoch=epoch,
            groups=[],
            in_force=decision.in_force,
            directive=decision.directive,
            validated=self._state.validated,
            validating=validating,
        )

    async def consult(self) -> None:
        """Decide about remedies before the next step, and write each decision to the store.

        Call it only while the learner trains nothing.
        """
        async with self._lock:
            while (found := self._choose()) is not None:
                written = await self._write(found)
                self._known.add(written)
                self._look()
                fields = written.model_dump(mode="json", exclude={"before", "after", "in_force"})
                logs.event(_log, EVENTS[type(written)], level=logging.WARNING, **fields)

    @property
    def done(self) -> bool:
        """Whether no further step could be a remedy."""
        return self._scheduler.done

    def refused(self, order: str) -> RefusedOrder | None:
        """Why an order was refused; None if it was not."""
        return self._known.refused.get(order)

    def answer(self, order: str) -> tuple[Decision | None, StepReport | None]:
        """The decision about an order, and the report of the decision's step, if they exist."""
        if order not in self.course.orders:
            return None, None
        reports = {report.step: report for report in self._state.reports}
        found = [decision for decision in self._known.decisions.values() if decision.order == order]
        for decision in found:
            report = reports.get(decision.step)
            if report is None or report.directive == decision.directive:
                return decision, report
        return None, None

    def _choose(self) -> Record | None:
        if self.course.pending:
            return None
        order = self.order
        if order is not None and order not in self.course.orders and order not in self._known.refused:
            return obey(order, self._context())
        raised = self._spec.collapse.policy == "Remediate" and self._signals.raised
        return decide(self._context()) if raised or self.course.watched else None

    def _context(self) -> RemedyContext:
        state = self._state
        return RemedyContext(
            spec=self._spec,
            reports=tuple(state.reports),
            course=self.course,
            verdicts=tuple(self._signals.verdicts),
            acting=self._spec.collapse.acted_on,
            rewards=self._signals.history(REWARD),
            validations=tuple(validations(state)),
            steps=self._scheduler.total,
            groups_left=self._scheduler.left,
        )

    def _look(self) -> None:
        known, state = self._known, self._state
        self.course = course(known.decisions.values(), known.kept, state.reports, self._void)
        self.now = applied(self._spec, state.in_force)

    def _update_signals(self, report: StepReport) -> None:
        """Give signals the current settings, by which they judge."""
        if report.directive is not None:
            self._signals.changed(report.step, applied(self._spec, report.in_force))


def validations(state: State) -> list[Validated]:
    """The complete validations, the best first."""
    return [
        Validated(step, state.evaluations[step].external_score, state.scores.get(step, {}))
        for step in state.validated
    ]
