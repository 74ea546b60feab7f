"""Runs the groups of a training job: within the budget, to their end, and durable with their usage."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from headway_api import logs
from headway_api.records import Abandoned, EpisodeRecord, GroupRecord, Purpose
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.staleness import as_of
from headway_coordinator import group as groups
from headway_coordinator.bounds import ROLLED_BACK, TOO_OLD, oldest_step
from headway_coordinator.budget.gate import Budget
from headway_coordinator.budget.worst import Bill, Limits
from headway_coordinator.dataset import position_of
from headway_coordinator.durable import Durable
from headway_coordinator.episode import Task
from headway_coordinator.ledger.events import discarded_tokens
from headway_coordinator.recurring import Recurring, given_up
from headway_coordinator.scheduler.slots import BatchScheduler
from headway_coordinator.state import State
from headway_coordinator.validations import ConcurrentValidation

_log = logging.getLogger(__name__)


@dataclass
class GroupRunner:
    """Only the event loop uses it."""

    spec: RLTrainingJobSpec
    state: State
    """Receives the counts of running and ended episodes, and of abandoned groups."""
    scheduler: BatchScheduler
    durable: Durable
    episode: groups.Run
    """Plays an episode on the training servers."""
    concurrent: ConcurrentValidation | None
    """Plays the episodes of validations; None if the training servers play them."""
    limiter: groups.Limiter
    """Bounds training episodes."""
    validation_limiter: groups.Limiter
    """Bounds all other episodes."""
    start_number: int
    budget: Budget
    limits: Limits
    faults: Recurring
    """Collects why episodes failed."""
    relative: groups.GroupJudge | None
    """Rewards the episodes of a group relative to each other."""
    on_episode: Callable[[EpisodeRecord], None]
    on_change: Callable[[], None]

    async def run(self, plan: groups.Plan) -> GroupRecord:
        """Run a group; make it and its usage durable."""
        limit = self.limits.sampled(plan.sampling.max_tokens, plan.sampling.episode_tokens)
        async with self.budget.group(plan, Bill(plan.purpose), self.limits, limit) as reservation:
            group = await groups.run(
                replace(plan, spending=reservation),
                reservation.watched(self._counted),
                self.limiter if plan.purpose is Purpose.TRAIN else self.validation_limiter,
                start_number=self.start_number,
                max_retries=self.spec.rollout.max_retries,
                relative=self.relative,
            )
            if plan.purpose is not Purpose.TRAIN and not group.episodes:
                return group  # the budget refused it, and it used nothing
            own, group = group, await self.durable.put(group)
            if group is not own and (why := self._untrainable(group)) is not None:
                group = await self.durable.give_up(group, why)
            await self.durable.bill(group)
            if plan.purpose is Purpose.TRAIN and group.abandoned is None:
                self.budget.awaits_step(group)
        self.state.discarded += discarded_tokens(group)
        return group

    async def give_up(self, group: GroupRecord, why: Abandoned) -> GroupRecord:
        """Abandon a finished group: it is marked, billed as discarded, and its reservation ends."""
        counted = discarded_tokens(group).total()
        group = await self.durable.give_up(group, why)
        await self.durable.bill(group)
        self.budget.settled(group.group_id)
        self.state.discarded[why.reason] += discarded_tokens(group).total() - counted
        return group

    def count_abandoned(self, group: GroupRecord, why: Abandoned) -> None:
        """Count and log an abandoned group."""
        fields = why.model_dump()
        logs.event(_log, "group-abandoned", level=logging.WARNING, group=group.group_id, **fields)
        self.state.abandoned[why.reason] += 1

    def _untrainable(self, group: GroupRecord) -> Abandoned | None:
        """Why the group of a predecessor, which was spooled first, is abandoned. None if it may be trained.

        A group with tokens older than its slot allows is abandoned, even if it could still be trained. The
        scheduler bounds staleness from a group's start. A group that was sampled before a rollback needs its
        own check, because steps without groups add nothing to a token's age.
        """
        oldest, position = oldest_step(group), position_of(group.group_id)
        if group.purpose is not Purpose.TRAIN or group.abandoned is not None or oldest is None:
            return None
        if oldest < self.state.went_back:
            return ROLLED_BACK
        slot = self.scheduler.active.get(position)  # none if the group was abandoned meanwhile
        return TOO_OLD if slot is not None and as_of(oldest, self.state.idle) < slot.since else None

    async def _counted(self, task: Task) -> EpisodeRecord:
        """Play an episode, and count it.

        Raises:
            JobError: recurring faults ended the episodes so far, and none was scored.
        """
        counts = self.state
        counts.in_flight[task.purpose] += 1
        counts.retried[task.purpose] += groups.is_retry(task.attempt)
        episode = self.episode
        if self.concurrent is not None and task.purpose is not Purpose.TRAIN:
            episode = self.concurrent.episode
        try:
            record = await episode(task)
        finally:
            counts.in_flight[task.purpose] -= 1
        counts.ended[record.outcome.value, task.purpose] += 1
        if record.reward is not None:
            self.state.moved()
        self.on_episode(record)
        at_once = 1 + sum(counts.in_flight.values())
        if self.faults.ended(record.episode_id, scored=record.reward is not None, at_once=at_once):
            self.on_change()
        if (found := self.faults.fatal_cause) is not None:
            raise given_up(found, begun=counts.step > 0)
        return record
