"""Restores a training job from what an earlier coordinator left in the store."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from headway_api import logs
from headway_api.staleness import as_of
from headway_coordinator.bounds import GIVEN_UP, ROLLED_BACK, TOO_OLD, oldest_step
from headway_coordinator.budget.gate import Budget
from headway_coordinator.dataset import position_of
from headway_coordinator.durable import Durable
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.group_runner import GroupRunner
from headway_coordinator.ledger.events import discarded_tokens
from headway_coordinator.remedies.driver import Remedies
from headway_coordinator.scheduler.slots import BatchScheduler
from headway_coordinator.spool import Replay
from headway_coordinator.state import State
from headway_coordinator.training_groups import TrainingGroups
from headway_coordinator.validations import Validations

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Restoring:
    """The parts of a training job whose state is restored."""

    state: State
    scheduler: BatchScheduler
    durable: Durable
    remedies: Remedies
    runner: GroupRunner
    groups: TrainingGroups
    validations: Validations
    fleet: Fleet
    budget: Budget

    async def restore(self, replay: Replay) -> None:
        """Restore what a predecessor left. No spooled group is sampled again."""
        self.state.reports = list(replay.reports)
        self.remedies.restore(replay.known, replay.undone)
        self.scheduler.batch_size = self.remedies.now.algorithm.batch_size
        self.scheduler.max_staleness = self.remedies.now.algorithm.max_steps_off_policy
        kept = {position_of(g.group_id): g for g in replay.waiting if g.abandoned is None}
        gone = [group for group in replay.waiting if group.abandoned is not None]
        settled = {position_of(group) for group in replay.taken} | {position_of(g.group_id) for g in gone}
        at, idle, back = max(0, self.state.step), self.state.idle, self.state.went_back
        sampled = {position: oldest_step(group) for position, group in kept.items()}
        # A rollback abandons groups of older weights. A predecessor may have ended before it abandoned all.
        left = {p: ROLLED_BACK for p, step in sampled.items() if step is not None and step < back}
        # A group without a token to train counts as sampled just before the undone step that contained it.
        restored = {
            position_of(group): report.step - 1 for report in replay.undone for group in report.groups
        }
        late = self.scheduler.restore(
            at,
            settled | left.keys(),
            finished={
                p: restored.get(p, at) if step is None else as_of(step, idle)
                for p, step in sampled.items()
                if p not in left
            },
            undone={r.step: [*map(position_of, r.groups)] for r in replay.undone if r.directive is None},
            used=len(replay.taken),
            changes=bool(self.remedies.course.pending),
        )
        left |= {p: GIVEN_UP[why] if idle else TOO_OLD for p, why in late.items()}
        for position, why in left.items():
            gone.append(group := await self.durable.give_up(kept.pop(position), why))
            self.runner.count_abandoned(group, why)
            self.state.discarded += discarded_tokens(group)
        for group in [*kept.values(), *gone, *(g for found in replay.validations.values() for g in found)]:
            await self.durable.bill(group)
        for group in await self.durable.tested():
            await self.durable.bill(group)
        for report in replay.reports[1:]:
            await self.durable.bill_step(report)
        await self.durable.bill_lost(replay.taken)
        self.groups.waiting = kept
        for group in kept.values():
            self.budget.awaits_step(group)
        await self.validations.restore(replay)
        self.state.last_batch = list(replay.last)
        if replay.reports:
            await self.fleet.want(replay.reports[-1].weights)
        logs.event(_log, "restored", step=self.state.step, waiting=len(kept), settled=len(settled))
