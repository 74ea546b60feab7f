"""Drives a training job: restores its state, keeps groups in flight, hands out batches, takes reports.

Other modules decide which group is next (`scheduler`), what an episode is (`episode`), what is durable
(`spool`, `ledger`) and which step is validated (`validations`). Others restore (`restoring`), run the groups
(`training_groups`), hand out batches (`batches`) and take reports (`step_reports`). This module connects
them, and keeps the order:

    a group starts        when the scheduler has a slot, and no validation needs all servers
    a group is finished   once it is in the spool and in the ledger, and only then can it be in a batch
    a step is taken       when the learner reports it; its weights are wanted from then on
    a remedy is taken     as a step without groups, if one was decided before its batch was cut (`remedies`)
    a validation runs     beside training; full weights without a server of their own: between a step's report
                          and the next batch
    a paused job          hands out no batch and begins no group; running groups may end (`pause`)
    the test split        is judged once the last step is taken, and every validation is complete
    the job ends          after the test split
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from headway_analysis.measures.metrics import Metrics
from headway_api import logs
from headway_api.records import Batch, BatchWaits, EpisodeRecord, Finished, StepReport
from headway_api.rows import tasks_of
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator import group as groups
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.batch_waits import WaitNotes
from headway_coordinator.batches import Batches
from headway_coordinator.budget.gate import Budget, unbounded
from headway_coordinator.budget.worst import NO_LIMITS, Limits
from headway_coordinator.dataset import Data, Order
from headway_coordinator.durable import Durable
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.final_test import FinalTest
from headway_coordinator.group_runner import GroupRunner
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.mixing import Mixture, order_of
from headway_coordinator.progress import ProgressCondition
from headway_coordinator.recurring import Recurring
from headway_coordinator.remedies.driver import Remedies
from headway_coordinator.restoring import Restoring
from headway_coordinator.scheduler.slots import BatchScheduler
from headway_coordinator.signals import Signals
from headway_coordinator.spool import Replay, Spool
from headway_coordinator.state import FinishedWhy, State
from headway_coordinator.step_reports import StepReports
from headway_coordinator.training_groups import TrainingGroups
from headway_coordinator.validations import ConcurrentValidation, Validations

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Callbacks:
    """Functions that a job calls as it makes progress."""

    on_change: Callable[[], None] = lambda: None
    on_episode: Callable[[EpisodeRecord], None] = lambda record: None
    on_validation: Callable[[int, Metrics], None] = lambda step, metrics: None
    on_test: Callable[[int, Metrics], None] = lambda step, metrics: None
    paused: Callable[[], bool] = lambda: False
    """Whether the job is paused, so that it trains and begins nothing. `on_change` may pause it."""


class Training:
    """Drives one job. All of its state changes on the event loop only."""

    def __init__(
        self,
        spec: RLTrainingJobSpec,
        data: Data,
        fleet: Fleet,
        spool: Spool,
        ledger: Ledger,
        episode: groups.Run,
        start_number: int,
        limiter: AdaptiveSemaphore,
        calls: Callbacks,
        *,
        concurrent: ConcurrentValidation | None = None,
        signals: Signals | None = None,
        faults: Recurring | None = None,
        relative: groups.GroupJudge | None = None,
        budget: Budget | None = None,
        limits: Limits = NO_LIMITS,
        started: float | None = None,
    ) -> None:
        """Connect the job's parts.

        Args:
            concurrent: samples validations while training goes on; None if training waits for them.
            signals: may call for a remedy.
            faults: collects why episodes failed.
            relative: rewards the episodes of a group relative to each other.
            budget: decides when groups may begin.
            limits: the bounds of an episode.
            started: when this process started, in Unix time.
        """
        self.paused, self.limiter = calls.paused, limiter
        self.faults = faults or Recurring()
        self.drains = False
        """Whether no group begins any more: the budget is exhausted, and only finished groups are trained."""
        self._spec, self._fleet, self._concurrent = spec, fleet, concurrent
        self._budget = budget or unbounded()
        self._durable = durable = Durable(spool, ledger, start_number)
        self.state = state = State()
        self._progress = progress = ProgressCondition(state, calls.on_change)
        self.scheduler = scheduler = _scheduler(spec, len(data.train))
        self.remedies = remedies = Remedies(spec, state, scheduler, signals or Signals(spec), durable.decide)
        own = concurrent.limiter if concurrent and concurrent.limiter else limiter.lane()
        runner = GroupRunner(
            spec, state, scheduler, durable, episode, concurrent, limiter, own, start_number, self._budget,
            limits, self.faults, relative, calls.on_episode, calls.on_change,
        )  # fmt: skip
        order = _order(spec, data)
        self._waits = waits = WaitNotes(time.time() if started is None else started)
        self._groups = TrainingGroups(
            spec, data.train, order, state, scheduler, remedies, runner, self.faults, progress, waits
        )
        self.validations, self._test = self._held_out(data, runner, calls)
        self._batches = Batches(
            spec, data.train, order, state, scheduler, remedies, self._groups, self.validations, calls.paused,
            progress,
        )  # fmt: skip
        self._reports = StepReports(
            state, scheduler, durable, remedies, self._groups, self.validations, self._test, fleet,
            self._budget, progress, concurrent, calls.on_change,
        )  # fmt: skip
        self._restoring = Restoring(
            state, scheduler, durable, remedies, runner, self._groups, self.validations, fleet, self._budget
        )

    def _held_out(self, data: Data, runner: GroupRunner, calls: Callbacks) -> tuple[Validations, FinalTest]:
        """The validations and the final test, which measure the job on rows that it does not train on."""
        concurrent, durable = self._concurrent, self._durable
        validations = Validations(
            self._spec,
            data.validation,
            data.tasks.get("validation"),
            self.state,
            self._fleet,
            concurrent,
            play=runner.run,
            keep=durable.conclude,
            published=durable.published,
            moved=self._progress.notify,
            on_validation=calls.on_validation,
            given_up=self._groups.given_up,
        )
        test = FinalTest(
            self._spec,
            data.test,
            data.tasks.get("test"),
            self.state,
            concurrent.fleet if concurrent else self._fleet,
            play=runner.run,
            answered=durable.evaluated,
            published=durable.published,
            moved=self._progress.notify,
            on_test=calls.on_test,
        )
        return validations, test

    @property
    def steps(self) -> int:
        """The expected number of steps."""
        return self._batches.steps

    @property
    def done(self) -> bool:
        """Whether no step follows."""
        return self._batches.done

    @property
    def epochs_done(self) -> int:
        """Completed epochs of the training rows."""
        return self._batches.epochs_done

    @property
    def batch_ready(self) -> bool:
        """Whether the learner could take a batch or a remedy now."""
        return self._batches.ready

    def learner_may_step(self) -> bool:
        """Whether the learner may take a step now, which would free the budget that its groups reserve."""
        return self._batches.learner_may_step()

    async def batch(self, step: int) -> Batch | Finished | None:
        """The batch of `step`, once it can be cut; None until then. Raises as `Batches.take` does."""
        return await self._batches.take(step)

    async def wait_for_batch(self, step: int, timeout: float) -> Batch | Finished | None:
        """The batch of `step`, after waiting up to `timeout` seconds. Raises as `Batches.take` does."""
        return await self._batches.wait(step, timeout)

    def waits_of(self, batch: Batch) -> BatchWaits:
        """The waits of a batch that is sent now."""
        return self._batches.waits(batch)

    async def report(self, report: StepReport) -> None:
        """Take the learner's report of a step. Raises as `StepReports.take` does."""
        await self._reports.take(report)

    async def restore(self, replay: Replay) -> None:
        """Restore what a predecessor left in the store."""
        await self._restoring.restore(replay)

    async def until_durable(self) -> None:
        """Return once the newest step has a complete checkpoint. The caller sets the deadline.

        Raises:
            JobError: `LearnerRolledBack`: the step never becomes durable, because a rolled-back learner takes
                it again.
        """
        await self._progress.until(lambda: self.state.durable or self._progress.fault is not None)
        if self._progress.fault is not None:
            raise self._progress.fault

    @property
    def spooled(self) -> int:
        """Finished groups that no step has taken."""
        return len(self._groups.waiting)

    @property
    def store_busy(self) -> float:
        """Seconds that the current write to the artifact store has taken so far."""
        return self._durable.busy

    async def run(self) -> None:
        """Run until the last step is taken and validated.

        Raises:
            ExceptionGroup: with a JobError: `EpisodesFailing`, `LearnerRolledBack`, `StaleBatch`,
                `Superseded`, or the reason of a recurring fault, if no episode was scored.
        """
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(self._progress.faulted())]
            if self._concurrent is not None:
                background.append(tasks.create_task(self._validate()))
            await self._progress.until(lambda: self.state.step >= 0)
            while True:
                seen = self.state.step
                if self._batches.unvalidated() and self._concurrent is None:
                    await self.validations.run()
                elif self.done:
                    break
                else:
                    with self._waits.timed("weights"):
                        await self._fleet.ready()
                    while self._may_start and (position := self.scheduler.start()) is not None:
                        tasks.create_task(self._groups.train(position))
                    await self._progress.until(partial(self._has_work, seen))
            await self._progress.until(lambda: not self._batches.unvalidated())
            await self._test.run()
            for task in background:
                task.cancel()
        self.state.finished = self._why_finished
        await self._progress.notify()

    @property
    def _why_finished(self) -> FinishedWhy:
        if self.scheduler.step >= self._spec.schedule.max_steps:
            return "MaxSteps"
        return "BudgetExhausted" if self.drains else "MaxEpochs"

    def _has_work(self, seen: int) -> bool:
        """Whether `run` has work again: a step after `seen`, the end of training, or a group to start."""
        startable = self._may_start and self.scheduler.free > 0 and not self.scheduler.exhausted
        return self.state.step != seen or self.done or startable

    @property
    def _may_start(self) -> bool:
        """Whether a group sampled now could be trained."""
        return not self.paused() and not self.remedies.goes_back

    async def _validate(self) -> None:
        """Validate beside training, one step after the other, until cancelled."""
        while True:
            await self._progress.until(lambda: bool(self._batches.unvalidated()))
            await self.validations.run()

    def drain(self) -> None:
        """Begin no further group, train the complete batches, and end."""
        if not self.drains:
            self.drains = True
            logs.event(_log, "draining", level=logging.WARNING, step=self.state.step)
        self.scheduler.positions = min(self.scheduler.positions, self.scheduler.cursor)
        self._budget.refuse()
        self._groups.cancel_untrainable()


def _order(spec: RLTrainingJobSpec, data: Data) -> Order | Mixture:
    """The order of a job's training rows."""
    tasks = tasks_of(data.train, spec.data.train.task_column)
    return order_of(len(data.train), tasks, spec.data.task_weights, spec.seed, spec.data.shuffle)


def _scheduler(spec: RLTrainingJobSpec, rows: int) -> BatchScheduler:
    """The scheduler of a job that trains this many rows."""
    algorithm, schedule = spec.algorithm, spec.schedule
    return BatchScheduler(
        batch_size=algorithm.batch_size,
        max_staleness=algorithm.max_steps_off_policy,
        steps=schedule.max_steps,
        positions=rows * schedule.max_epochs,
        order=algorithm.sampler,
    )
