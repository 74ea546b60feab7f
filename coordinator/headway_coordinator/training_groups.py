"""The groups of a training job that run, or wait for a batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from headway_api.exits import JobError
from headway_api.records import Abandoned, GroupRecord, Purpose, StepReport
from headway_api.rows import Row
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator import group as groups
from headway_coordinator.batch_waits import WaitNotes
from headway_coordinator.bounds import GIVEN_UP, LOST_LIMIT, NO_STEP_LEFT, lost
from headway_coordinator.cancel_token import CancelToken
from headway_coordinator.dataset import Order
from headway_coordinator.gateway.asks import Sampling
from headway_coordinator.group_runner import GroupRunner
from headway_coordinator.mixing import Mixture
from headway_coordinator.progress import ProgressCondition
from headway_coordinator.recurring import Recurring, given_up
from headway_coordinator.remedies.driver import Remedies
from headway_coordinator.scheduler.slots import BatchScheduler
from headway_coordinator.state import State


@dataclass
class TrainingGroups:
    """Only the event loop uses it. A group's key is its position in the data's order."""

    spec: RLTrainingJobSpec
    rows: Sequence[Row]
    order: Order | Mixture
    state: State
    scheduler: BatchScheduler
    remedies: Remedies
    runner: GroupRunner
    faults: Recurring
    progress: ProgressCondition
    waits: WaitNotes
    running: dict[int, CancelToken] = field(default_factory=dict)
    waiting: dict[int, GroupRecord] = field(default_factory=dict)
    """Finished groups that no step has taken."""
    leaving: dict[int, Abandoned] = field(default_factory=dict)
    """Why running groups are to be abandoned. An entry is removed once its group has ended."""
    _lost_in_a_row: int = 0

    async def train(self, position: int) -> None:
        """Run the group of a position, until it waits for a batch or is abandoned."""
        sampling = self.spec.rollout.sampling
        slot = self.order.slot(position)
        plan = groups.Plan(
            slot=slot,
            purpose=Purpose.TRAIN,
            step=max(0, self.state.step),
            row=self.rows[slot.row],
            size=self.remedies.now.algorithm.group_size,
            sampling=Sampling(
                sampling.temperature,
                sampling.top_p,
                sampling.max_tokens,
                self.spec.rollout.episode_token_limit,
            ),
            job_seed=self.spec.seed,
        )
        self.running[position] = plan.stop
        if position in self.leaving:
            plan.stop.now(self.leaving[position])
        self.cancel_untrainable()
        began = time.time()
        group = await self.runner.run(plan)
        del self.running[position]
        why = self.leaving.pop(position, None)
        if why is not None and group.abandoned is None:  # it was abandoned after it had ended
            group = await self.runner.give_up(group, why)
        if group.abandoned is not None:
            self._abandoned(position, group, group.abandoned)
        else:
            self._lost_in_a_row = 0
            self.waiting[position] = group
            self.waits.stored(position, began, group)
            self.scheduler.finished(position)
        await self.progress.notify()

    def _abandoned(self, position: int, group: GroupRecord, why: Abandoned) -> None:
        self.runner.count_abandoned(group, why)
        self.scheduler.abandoned(position)
        self.cancel_untrainable()
        if why.reason in ("TooFewScored", "NotJudged"):
            self._lost_in_a_row += 1
            if self._lost_in_a_row >= max(LOST_LIMIT, self.scheduler.slots):
                raise self.given_up(group)

    def given_up(self, group: GroupRecord) -> JobError:
        """The error of a job whose groups are all lost. It names the worst recurring cause, if any."""
        found = self.faults.worst_cause()
        return lost(group) if found is None else given_up(found, begun=self.state.step > 0)

    def cancel_untrainable(self) -> None:
        """Cancel running groups if no step can train them. Called after every change that may cause this."""
        if self.scheduler.over:
            for stop in self.running.values():
                stop.now(NO_STEP_LEFT)

    def took_remedy(self, report: StepReport) -> list[tuple[GroupRecord, Abandoned]]:
        """After the learner took or refused a remedy, abandon the groups that no step can train any more.

        Running groups are stopped, and abandoned once they end. Returns the finished groups that are
        abandoned; the caller has to make that durable.
        """
        self.remedies.took(report)
        now, gone = self.remedies.now.algorithm, []
        late = self.scheduler.took_remedy(
            report.step, now.batch_size, now.max_steps_off_policy, rolled_back=report.restored is not None
        )
        for position, reason in late.items():
            why = GIVEN_UP[reason]
            if position in self.waiting:
                gone.append((self.waiting.pop(position), why))
                self.waits.forget([position])
                continue
            self.leaving[position] = why
            if position in self.running:
                self.running[position].now(why)
        self.cancel_untrainable()
        return gone

    async def lose(self, group: GroupRecord, why: Abandoned) -> None:
        """Abandon a finished group: it is stored and billed as an abandoned one."""
        self.runner.count_abandoned(await self.runner.give_up(group, why), why)
