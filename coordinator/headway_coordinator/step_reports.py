"""Takes the learner's reports of its steps, in order. A report is durable before it is answered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headway_api import logs
from headway_api.records import Abandoned, GroupRecord, StepReport
from headway_coordinator.bounds import StepConflictError, rollback
from headway_coordinator.budget.gate import Budget
from headway_coordinator.dataset import position_of
from headway_coordinator.durable import Durable
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.final_test import FinalTest
from headway_coordinator.progress import ProgressCondition
from headway_coordinator.remedies.driver import Remedies
from headway_coordinator.scheduler.slots import BatchScheduler
from headway_coordinator.state import State
from headway_coordinator.training_groups import TrainingGroups
from headway_coordinator.validations import ConcurrentValidation, Validations

_log = logging.getLogger(__name__)


@dataclass
class StepReports:
    """Only the event loop uses it."""

    state: State
    scheduler: BatchScheduler
    durable: Durable
    remedies: Remedies
    groups: TrainingGroups
    validations: Validations
    test: FinalTest
    fleet: Fleet
    budget: Budget
    progress: ProgressCondition
    concurrent: ConcurrentValidation | None
    on_change: Callable[[], None]
    """Called before the next batch can be requested. It may pause the job."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def take(self, report: StepReport) -> None:
        """Take the learner's report of a step. Repeating it changes nothing.

        Raises:
            StepConflictError: the step does not follow the last one, names other groups than its batch, or
                comes from a learner that was replaced.
            JobError: `LearnerRolledBack`: the learner goes on from an older step. This also ends
                `Training.run`.
        """
        async with self._lock:
            newest = self.state.reports[-1].version if self.state.reports else report.version
            if report.version.incarnation < newest.incarnation:
                raise StepConflictError(
                    f"version {report.version} is from an earlier learner than version {newest}"
                )
            if report.step == self.state.step and set(report.groups) == set(self.state.reports[-1].groups):
                await self._again(report)
                return
            if report.step != self.state.step + 1:
                await self._refuse_rollback(report)
                raise StepConflictError(f"step {report.step} does not follow step {self.state.step}")
            await self._take_next(report)

    async def _refuse_rollback(self, report: StepReport) -> None:
        """End this process if the learner was rolled back: its successor restores the earlier state.

        Raises:
            JobError: `LearnerRolledBack`.
        """
        if not self.state.reports:
            return
        latest = await self.durable.latest()
        if (fault := rollback(report, self.state.reports[-1], latest)) is not None:
            await self.progress.end(fault)
            raise fault

    async def _again(self, report: StepReport) -> None:
        """Take the newest step's report again: a newer checkpoint is durable, or the learner restarted."""
        before = self.state.reports[-1]
        if report == before:
            return
        self.state.reports[-1] = report
        if report.weights != before.weights:
            await self._want(report, time.monotonic())
            await self.validations.updated(report)
        await self.progress.notify()

    async def _take_next(self, report: StepReport) -> None:
        reported = time.monotonic()
        positions = [position_of(group) for group in report.groups]
        if report.directive is not None:
            self._refuse_undecided(report)
        elif report.step > 0 and not self.scheduler.accepts(report.step, positions):
            raise StepConflictError(f"step {report.step} names other groups than its batch")
        await self.durable.keep(report)
        for group_id in report.groups:
            self.budget.settled(group_id)
        gone: list[tuple[GroupRecord, Abandoned]] = []
        if report.directive is None and report.step > 0:
            self.scheduler.trained(report.step, positions)
            self.groups.cancel_untrainable()
            self.state.last_batch = [self.groups.waiting.pop(position) for position in positions]
            self.groups.waits.forget(positions)
        self.state.reports.append(report)
        if report.directive is not None:
            gone = self.groups.took_remedy(report)
        self.on_change()  # before the next batch can be requested: this step may pause the job
        await self._want(report, reported)
        for group, why in gone:
            await self.groups.lose(group, why)
        logs.event(_log, "step", step=report.step, version=str(report.version), metrics=report.metrics)
        await self.progress.notify()

    def _refuse_undecided(self, report: StepReport) -> None:
        """Refuse a remedy that the coordinator did not decide.

        Raises:
            StepConflictError: no remedy is due, the report has another directive, or it names groups.
        """
        change = self.remedies.due(report.step)
        if change is None or report.directive != change.directive or report.groups:
            raise StepConflictError(f"step {report.step} is a remedy that was not decided")

    async def _want(self, report: StepReport, reported: float) -> None:
        """Ask the fleet to sample with the weights of a step."""
        if self.test.runs and self.concurrent is None:
            return  # the servers hold the weights that are tested; nothing samples newer weights any more
        # The learner reports step 0 while the servers still start, so that wait says nothing about weights.
        await self.fleet.want(report.weights, reported if report.step > 0 else None)
