"""Drives a training job: restores its state, keeps groups in flight, hands out batches, takes reports.

Other modules decide which group is next (`scheduler`), what an episode is (`episode`), what is durable
(`spool`, `ledger`) and which step is validated (`validations`). This module only keeps the order:

    a group starts        when the scheduler has a slot, and no validation needs all servers
    a group is finished   once it is in the spool and in the ledger, and only then can it be in a batch
    a step is taken       when the learner reports it; its weights are wanted from then on
    a remedy is taken     as a step without groups, if one was decided before its batch was cut (`remedies`)
    a validation runs     beside training; full weights without a server of their own: between a step's report
                          and the next batch
    a paused job          hands out no batch and begins no group; what runs may end (`pause`)
    the test split        is judged once the last step is taken, and every validation is complete
    the job ends          after that
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from headway_analysis.measures.figures import Figures
from headway_api import logs
from headway_api.exits import JobError
from headway_api.records import Abandoned, Batch, EpisodeRecord, Finished, GroupRecord, Purpose, StepReport
from headway_api.rows import tasks_of
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.staleness import as_of
from headway_coordinator import group as groups
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.bounds import (
    GIVEN_UP,
    LOST_LIMIT,
    NO_STEP_LEFT,
    ROLLED_BACK,
    TOO_OLD,
    check_lag,
    lost,
    oldest_step,
    rollback,
)
from headway_coordinator.budget.gate import Budget, unbounded
from headway_coordinator.budget.worst import NO_LIMITS, Limits
from headway_coordinator.cancel_token import CancelToken
from headway_coordinator.dataset import Data, position_of
from headway_coordinator.durable import Durable
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.final_test import FinalTest
from headway_coordinator.gateway.asks import Sampling
from headway_coordinator.group_runner import GroupRunner
from headway_coordinator.ledger.events import discarded_tokens
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.mixing import order_of
from headway_coordinator.recurring import Recurring, given_up
from headway_coordinator.remedies.driver import Remedies
from headway_coordinator.scheduler.slots import BatchScheduler
from headway_coordinator.signals import Signals
from headway_coordinator.spool import Replay, Spool
from headway_coordinator.state import FinishedWhy, State
from headway_coordinator.validations import Beside, Validations

_log = logging.getLogger(__name__)


class Conflict(Exception):
    """The learner asks for, or reports, a step that does not follow."""


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
        incarnation: int,
        limiter: AdaptiveSemaphore,
        on_change: Callable[[], None] = lambda: None,
        on_episode: Callable[[EpisodeRecord], None] = lambda record: None,
        on_validation: Callable[[int, Figures], None] = lambda step, figures: None,
        on_test: Callable[[int, Figures], None] = lambda step, figures: None,
        paused: Callable[[], bool] = lambda: False,
        beside: Beside | None = None,
        signals: Signals | None = None,
        faults: Recurring | None = None,
        relative: groups.Relative | None = None,
        budget: Budget | None = None,
        limits: Limits = NO_LIMITS,
    ) -> None:
        """Connect the job's parts.

        Args:
            paused: whether nothing more may be trained or begun. `on_change` may decide it.
            beside: samples validations while training goes on; None if training waits for them.
            signals: may call for a remedy.
            faults: collects why episodes failed.
            relative: rewards the episodes of a group against each other.
            budget: lets groups begin.
            limits: the bounds of an episode.
        """
        algorithm, schedule = spec.algorithm, spec.schedule
        self._spec = spec
        self._data = data
        self._fleet = fleet
        self._on_change = on_change
        self.faults = faults or Recurring()
        self._budget = budget or unbounded()
        self.drains = False
        """Whether no group begins any more: the budget is exhausted, and only finished groups are trained."""
        self._beside = beside
        self.paused = paused
        self._order = order_of(
            len(data.train),
            tasks_of(data.train, spec.data.train.task_column),
            spec.data.task_weights,
            spec.seed,
            spec.data.shuffle,
        )
        self.limiter = limiter
        self._durable = Durable(spool, ledger, incarnation)
        self._reporting = asyncio.Lock()
        self._changed = asyncio.Condition()
        self._running: dict[int, CancelToken] = {}
        self._waiting: dict[int, GroupRecord] = {}
        self._leaving: dict[int, Abandoned] = {}
        """Why running groups were abandoned. Each leaves once it has ended."""
        self._lost_in_a_row = 0
        self._fault: JobError | None = None
        """The error that `run` ends with. It occurred in a call of the learner."""
        self.state = State()
        self.scheduler = BatchScheduler(
            batch_size=algorithm.batch_size,
            max_lag=algorithm.max_steps_off_policy,
            steps=schedule.max_steps,
            positions=len(data.train) * schedule.max_epochs,
            order=algorithm.sampler,
        )
        self._groups = GroupRunner(
            spec,
            self.state,
            self.scheduler,
            self._durable,
            episode=episode,
            beside=beside,
            limiter=limiter,
            validation_limiter=beside.limiter if beside and beside.limiter else limiter.lane(),
            incarnation=incarnation,
            budget=self._budget,
            limits=limits,
            faults=self.faults,
            relative=relative,
            on_episode=on_episode,
            on_change=on_change,
        )
        self.validations = Validations(
            spec,
            data.validation,
            data.tasks.get("validation"),
            self.state,
            fleet,
            beside,
            play=self._groups.run,
            keep=self._durable.conclude,
            published=self._durable.published,
            moved=self._notify,
            on_validation=on_validation,
            given_up=self._given_up,
        )
        self._test = FinalTest(
            spec,
            data.test,
            data.tasks.get("test"),
            self.state,
            beside.fleet if beside else fleet,
            play=self._groups.run,
            answered=self._durable.evaluated,
            published=self._durable.published,
            moved=self._notify,
            on_test=on_test,
        )
        self.remedies = Remedies(
            spec,
            self.state,
            self.scheduler,
            signals or Signals(spec),
            write=self._durable.decide,
        )

    @property
    def steps(self) -> int:
        """The expected number of steps. A batch is always complete, so a rest of the data may be left."""
        return self.scheduler.total

    @property
    def done(self) -> bool:
        """Whether no step follows: no batch can be cut, and no remedy is due at the next step.

        The learner may still be in a step while the last groups are abandoned. It may also have to repeat
        that step after it has used up the data.
        """
        left = self.remedies.due(self.state.step + 1) is not None
        return self.scheduler.done and not (left and self.state.step < self._spec.schedule.max_steps)

    @property
    def epochs_done(self) -> int:
        """Completed epochs of the training rows. Rows with abandoned groups count."""
        return len(self.scheduler.settled) // len(self._data.train)

    async def until_durable(self) -> None:
        """Return once the newest step has a complete checkpoint. The caller sets the deadline.

        Raises:
            JobError: `LearnerRolledBack`: the step never becomes durable; it is taken again.
        """
        await self._until(lambda: self.state.durable or self._fault is not None)
        if self._fault is not None:
            raise self._fault

    @property
    def spooled(self) -> int:
        """Finished groups that no step has taken."""
        return len(self._waiting)

    @property
    def store_busy(self) -> float:
        """Seconds that the current write to the artifact store has taken so far."""
        return self._durable.busy

    @property
    def batch_ready(self) -> bool:
        """Whether the learner could take a batch or a remedy now."""
        if self.state.step < 0 or self._held():
            return False
        return self.remedies.due(self.state.step + 1) is not None or self.scheduler.batch() is not None

    async def restore(self, replay: Replay) -> None:
        """Restore what a predecessor left: no spooled group is sampled again."""
        self.state.reports = list(replay.reports)
        self.remedies.restore(replay.known, replay.undone)
        self.scheduler.batch_size = self.remedies.now.algorithm.batch_size
        self.scheduler.max_lag = self.remedies.now.algorithm.max_steps_off_policy
        kept = {position_of(g.group_id): g for g in replay.waiting if g.abandoned is None}
        gone = [group for group in replay.waiting if group.abandoned is not None]
        settled = {position_of(group) for group in replay.taken} | {position_of(g.group_id) for g in gone}
        at, idle, back = max(0, self.state.step), self.state.idle, self.state.went_back
        sampled = {position: oldest_step(group) for position, group in kept.items()}
        # A predecessor that went back may have ended before it abandoned all of these.
        left = {p: ROLLED_BACK for p, step in sampled.items() if step is not None and step < back}
        # A group without a token counts as old as the step that is made of it again allows.
        anew = {position_of(group): report.step - 1 for report in replay.undone for group in report.groups}
        late = self.scheduler.restore(
            at,
            settled | left.keys(),
            finished={
                p: anew.get(p, at) if step is None else as_of(step, idle)
                for p, step in sampled.items()
                if p not in left
            },
            undone={r.step: [*map(position_of, r.groups)] for r in replay.undone if r.directive is None},
            used=len(replay.taken),
            changes=bool(self.remedies.course.pending),
        )
        left |= {p: GIVEN_UP[why] if idle else TOO_OLD for p, why in late.items()}
        for position, why in left.items():
            gone.append(group := await self._durable.give_up(kept.pop(position), why))
            self._groups.count_abandoned(group, why)
            self.state.discarded += discarded_tokens(group)
        for group in [*kept.values(), *gone, *(g for found in replay.validations.values() for g in found)]:
            await self._durable.bill(group)
        for group in await self._durable.tested():
            await self._durable.bill(group)
        for report in replay.reports[1:]:
            await self._durable.bill_step(report)
        await self._durable.bill_lost(replay.taken)
        self._waiting = kept
        for group in kept.values():
            self._budget.awaits_step(group)
        await self.validations.restore(replay)
        self.state.last_batch = list(replay.last)
        if replay.reports:
            await self._fleet.want(replay.reports[-1].weights)
        logs.event(_log, "restored", step=self.state.step, waiting=len(kept), settled=len(settled))

    async def run(self) -> None:
        """Run until the last step is taken and validated.

        Raises:
            ExceptionGroup: with a JobError: `EpisodesFailing`, `LearnerRolledBack`, `StaleBatch`,
                `Superseded`, or the reason of a fault that ends every episode.
        """
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(self._faulted())]
            if self._beside is not None:
                background.append(tasks.create_task(self._validate()))
            await self._until(lambda: self.state.step >= 0)
            while True:
                seen = self.state.step
                if self._unvalidated() and self._beside is None:
                    await self.validations.run()
                elif self.done:
                    break
                else:
                    await self._fleet.ready()
                    while self._may_start and (position := self.scheduler.start()) is not None:
                        tasks.create_task(self._train(position))
                    await self._until(partial(self._news, seen))
            await self._until(lambda: not self._unvalidated())
            await self._test.run()
            for task in background:
                task.cancel()
        self.state.finished = self._why_finished
        await self._notify()

    @property
    def _why_finished(self) -> FinishedWhy:
        if self.scheduler.step >= self._spec.schedule.max_steps:
            return "MaxSteps"
        return "BudgetExhausted" if self.drains else "MaxEpochs"

    def learner_may_step(self) -> bool:
        """Whether the learner may take a step, which would free what is reserved for it."""
        return self.scheduler.cut is not None or self.batch_ready

    async def batch(self, step: int) -> Batch | Finished | None:
        """The batch of `step`, once it can be cut; None until then.

        Raises:
            Conflict: the learner is not at the expected step.
            JobError: `StaleBatch`, if a batch breaks the staleness bound.
        """
        if self.state.finished is not None:
            return Finished(reason=self.state.finished, validated=self.state.validated)
        if step != self.state.step + 1 or self.state.step < 0:
            raise Conflict(f"step {step} was asked for, but step {self.state.step} is the last one reported")
        held, change = self._held() or self.remedies.busy, self.remedies.due(step)
        if change is not None and not held and not self.done:
            return self.remedies.batch(
                change, epoch=self.epochs_done, validating=list(self.validations.unfinished)
            )
        positions = None if held or change is not None else self.scheduler.take()
        self._stop_doomed()
        if positions is None or self.scheduler.step >= self.steps:
            return None
        batch = Batch(
            step=step,
            epoch=self._order.slot(positions[0]).epoch,
            groups=[self._waiting[position] for position in positions],
            in_force=self.state.in_force,
            validated=self.state.validated,
            validating=list(self.validations.unfinished),
            idle=self.state.idle,
        )
        bound = self.remedies.now.algorithm.max_steps_off_policy
        check_lag(batch, bound, self.state.went_back)
        return batch

    async def wait_for_batch(self, step: int, timeout: float) -> Batch | Finished | None:
        """Like `batch`, but waits up to `timeout` seconds.

        First it decides whether the step is a remedy. A JobError ends `run` too.
        """
        try:
            async with asyncio.timeout(timeout):
                while True:
                    await self._consult(step)
                    async with self._changed:
                        if (found := await self.batch(step)) is not None:
                            return found
                        await self._changed.wait()
        except TimeoutError:
            return None
        except JobError as fault:
            await self._end(fault)
            raise

    async def _consult(self, step: int) -> None:
        """Decide whether `step` is a remedy, unless its content is settled already."""
        free = step == self.state.step + 1 > 0 and self.state.finished is None and not self.scheduler.done
        if not free or self._held() or self.scheduler.cut is not None or step in self.scheduler.undone:
            return
        before = self.remedies.course
        await self.remedies.consult()
        if self.remedies.course != before:
            await self._notify()

    async def report(self, report: StepReport) -> None:
        """Take the learner's report of a step. Repeating it changes nothing.

        Raises:
            Conflict: the step does not follow, names other groups than its batch, or its learner was
                replaced.
            JobError: `LearnerRolledBack`: the learner goes on from an older step. It ends `run` too.
        """
        async with self._reporting:
            newest = self.state.reports[-1].version if self.state.reports else report.version
            if report.version.incarnation < newest.incarnation:
                raise Conflict(f"version {report.version} is of a learner before that of version {newest}")
            if report.step == self.state.step and set(report.groups) == set(self.state.reports[-1].groups):
                await self._again(report)
                return
            if report.step != self.state.step + 1:
                await self._refuse_rollback(report)
                raise Conflict(f"step {report.step} does not follow step {self.state.step}")
            await self._take(report)

    async def _refuse_rollback(self, report: StepReport) -> None:
        """End this process if the learner was rolled back, because its state was read before that."""
        if not self.state.reports:
            return
        latest = await self._durable.latest()
        if (fault := rollback(report, self.state.reports[-1], latest)) is not None:
            await self._end(fault)
            raise fault

    async def _end(self, fault: JobError) -> None:
        """End `run` with an error from a call of the learner."""
        self._fault = fault
        await self._notify()

    async def _faulted(self) -> None:
        await self._until(lambda: self._fault is not None)
        assert self._fault is not None
        raise self._fault

    async def _again(self, report: StepReport) -> None:
        """The same step again: a newer one has become durable, or the learner started again."""
        before = self.state.reports[-1]
        if report == before:
            return
        self.state.reports[-1] = report
        if report.weights != before.weights:
            await self._want(report, time.monotonic())
            await self.validations.updated(report)
        await self._notify()

    async def _take(self, report: StepReport) -> None:
        reported = time.monotonic()
        positions = [position_of(group) for group in report.groups]
        if report.directive is not None:
            self._refuse_undecided(report)
        elif report.step > 0 and not self.scheduler.accepts(report.step, positions):
            raise Conflict(f"step {report.step} names other groups than its batch")
        await self._durable.keep(report)
        for group_id in report.groups:
            self._budget.settled(group_id)
        gone: list[tuple[GroupRecord, Abandoned]] = []
        if report.directive is None and report.step > 0:
            self.scheduler.trained(report.step, positions)
            self._stop_doomed()
            self.state.last_batch = [self._waiting.pop(position) for position in positions]
        self.state.reports.append(report)
        if report.directive is not None:
            gone = self._pass(report)
        self._on_change()  # before the next batch can be requested: this step may pause the job
        await self._want(report, reported)
        for group, why in gone:
            await self._lose(group, why)
        logs.event(_log, "step", step=report.step, version=str(report.version), metrics=report.metrics)
        await self._notify()

    def _refuse_undecided(self, report: StepReport) -> None:
        """Refuse a step without groups that nobody decided.

        Raises:
            Conflict: it is such a step, or its directive differs from the decision.
        """
        change = self.remedies.due(report.step)
        if change is None or report.directive != change.directive or report.groups:
            raise Conflict(f"step {report.step} is a remedy that was not decided upon")

    def _pass(self, report: StepReport) -> list[tuple[GroupRecord, Abandoned]]:
        """After a remedy was taken or refused, abandon what no step can train any more.

        Running groups are stopped, and abandoned once they end. Returns the finished ones among the abandoned
        groups, to be made durable.
        """
        self.remedies.took(report)
        now, gone = self.remedies.now.algorithm, []
        late = self.scheduler.passed(
            report.step, now.batch_size, now.max_steps_off_policy, rolled_back=report.restored is not None
        )
        for position, reason in late.items():
            why = GIVEN_UP[reason]
            if position in self._waiting:
                gone.append((self._waiting.pop(position), why))
                continue
            self._leaving[position] = why
            if position in self._running:
                self._running[position].now(why)
        self._stop_doomed()
        return gone

    async def _lose(self, group: GroupRecord, why: Abandoned) -> None:
        """Abandon a finished group: it is stored and billed as an abandoned one."""
        self._groups.count_abandoned(await self._groups.give_up(group, why), why)

    async def _want(self, report: StepReport, reported: float) -> None:
        """Ask the fleet to sample with the weights of a step."""
        if self._test.runs and self._beside is None:
            return  # the servers hold what is tested; nothing is sampled with newer weights any more
        # The learner reports step 0 while the servers still start, so that wait says nothing about weights.
        await self._fleet.want(report.weights, reported if report.step > 0 else None)

    def _news(self, seen: int) -> bool:
        """Whether there is work that did not exist at step `seen`, when all slots were taken."""
        startable = self._may_start and self.scheduler.free > 0 and not self.scheduler.exhausted
        return self.state.step != seen or self.done or startable

    @property
    def _may_start(self) -> bool:
        """Whether a group sampled now could be trained."""
        return not self.paused() and not self.remedies.goes_back

    def _unvalidated(self) -> list[int]:
        """Steps whose validations are due and incomplete."""
        return self.validations.look(self.state.step, last=self.done)

    def _held(self) -> bool:
        """Whether the learner gets no batch: the job is paused, or a validation must be complete first."""
        self._unvalidated()
        return self.paused() or self.validations.hold

    async def _validate(self) -> None:
        """Validate beside training, one step after the other, until cancelled."""
        while True:
            await self._until(lambda: bool(self._unvalidated()))
            await self.validations.run()

    async def _train(self, position: int) -> None:
        sampling = self._spec.rollout.sampling
        slot = self._order.slot(position)
        plan = groups.Plan(
            slot=slot,
            purpose=Purpose.TRAIN,
            step=max(0, self.state.step),
            row=self._data.train[slot.row],
            size=self.remedies.now.algorithm.group_size,
            sampling=Sampling(
                sampling.temperature,
                sampling.top_p,
                sampling.max_tokens,
                self._spec.rollout.episode_token_limit,
            ),
            job_seed=self._spec.seed,
        )
        self._running[position] = plan.stop
        if position in self._leaving:
            plan.stop.now(self._leaving[position])
        self._stop_doomed()
        group = await self._groups.run(plan)
        del self._running[position]
        why = self._leaving.pop(position, None)
        if why is not None and group.abandoned is None:  # it was abandoned after it had ended
            group = await self._groups.give_up(group, why)
        if group.abandoned is not None:
            self._abandoned(position, group, group.abandoned)
        else:
            self._lost_in_a_row = 0
            self._waiting[position] = group
            self.scheduler.finished(position)
        await self._notify()

    def _abandoned(self, position: int, group: GroupRecord, why: Abandoned) -> None:
        self._groups.count_abandoned(group, why)
        self.scheduler.abandoned(position)
        self._stop_doomed()
        if why.reason in ("TooFewScored", "NotJudged"):
            self._lost_in_a_row += 1
            if self._lost_in_a_row >= max(LOST_LIMIT, self.scheduler.slots):
                raise self._given_up(group)

    def _given_up(self, group: GroupRecord) -> JobError:
        """Why a job ends whose groups are all lost: one fault ended most, or there are many faults."""
        found = self.faults.of_most()
        return lost(group) if found is None else given_up(found, begun=self.state.step > 0)

    def _stop_doomed(self) -> None:
        """Cancel groups that can no longer be trained. Called wherever that may have become true."""
        if self.scheduler.over:
            for stop in self._running.values():
                stop.now(NO_STEP_LEFT)

    def drain(self) -> None:
        """Begin no further group, train the complete batches, and end."""
        if not self.drains:
            self.drains = True
            logs.event(_log, "draining", level=logging.WARNING, step=self.state.step)
        self.scheduler.positions = min(self.scheduler.positions, self.scheduler.cursor)
        self._budget.refuse()
        self._stop_doomed()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for progress. The wait is unbounded on purpose: `stall` reports what it waits for."""
        async with self._changed:
            await self._changed.wait_for(condition)

    async def _notify(self) -> None:
        self.state.moved()
        self._on_change()
        async with self._changed:
            self._changed.notify_all()
