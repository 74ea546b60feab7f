"""A group: `groupSize` episodes on one prompt, with retries, sealed as one record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Container
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from headway_api.records import Abandoned, EpisodeRecord, GroupRecord, Outcome, Purpose
from headway_api.seeds import seed
from headway_coordinator.bounds import has_lost_too_many
from headway_coordinator.budget.spending import UNBOUNDED, Spending
from headway_coordinator.cancel_token import CancelToken, StoppedError
from headway_coordinator.dataset import Slot
from headway_coordinator.episode import Task
from headway_coordinator.gateway.asks import Sampling

ATTEMPTS_PER_START = 100
"""A restarted coordinator counts attempts from the next hundred, so no episode id is used twice."""

Run = Callable[[Task], Awaitable[EpisodeRecord]]


@dataclass(frozen=True)
class Plan:
    """What a group is, before it runs."""

    slot: Slot
    purpose: Purpose
    step: int
    """Training: the learner's step now. Validation: the step that is evaluated. Evaluation: 0."""
    row: dict[str, Any]
    size: int
    sampling: Sampling
    job_seed: int
    stop: CancelToken = field(default_factory=CancelToken, compare=False)
    """Ends the group's episodes, whatever they wait for, once nothing can be trained on them."""
    candidate: str | None = None
    """Evaluation: name of the candidate."""
    sampled_by: Literal["servers", "endpoint", "nobody"] = "servers"
    """The job's own servers, an endpoint elsewhere, or nobody if stored episodes are scored again."""
    model: str | None = None
    """The model whose prices apply. None if it is the job's own model, or if nobody samples."""
    suite: str | None = None
    """Evaluation: the suite that the sample belongs to. None for a row of the job's own dataset."""
    spending: Spending = field(default=UNBOUNDED, compare=False)
    """Reserves the cost of questions that the group's episodes ask judges."""

    @property
    def group_id(self) -> str:
        return self.slot.group_id(self.purpose, self.step, self.candidate)

    @property
    def _drawn_for(self) -> tuple[object, ...]:
        """Input of the episodes' sampling seeds. In an evaluation it is the same for every candidate."""
        if self.purpose is Purpose.EVALUATION:
            return (self.purpose, self.slot.position)
        return (self.group_id,)

    def task(self, index: int, attempt: int) -> Task:
        """One attempt at one of the group's episodes.

        The environment's seed does not depend on the attempt. The first attempt after each start of the
        coordinator samples with the same seed. A retry samples with a new seed. With the old seed, the model
        would say the same again, and could break the sandbox at every retry.
        """
        retry = (attempt,) if is_retry(attempt) else ()
        return Task(
            group_id=self.group_id,
            purpose=self.purpose,
            index=index,
            attempt=attempt,
            row=self.row,
            environment_seed=seed(self.job_seed, "environment", self.purpose, self.slot.position),
            sampling_seed=seed(self.job_seed, "sampling", *self._drawn_for, index, *retry),
            sampling=self.sampling,
            stop=self.stop,
            suite=self.suite,
            spending=self.spending,
        )


def is_retry(attempt: int) -> bool:
    """Whether an attempt, by its number, is not the first one of its coordinator's start."""
    return attempt % ATTEMPTS_PER_START > 0


class GroupJudge(Protocol):
    """Rewards the episodes of a group relative to each other."""

    async def judged(self, plan: Plan, group: GroupRecord, attempts: range) -> GroupRecord:
        """The group with its episodes' final rewards, or abandoned.

        It is unchanged if its rewards are final already, because they are not relative.

        Args:
            attempts: numbers of the attempts at judging the group.
        """


Limiter = AbstractAsyncContextManager[None]
"""Bounds episodes: an `AdaptiveSemaphore` or one of its lanes. Each episode enters it once."""


async def run(
    plan: Plan,
    episode: Run,
    limiter: Limiter,
    *,
    start_number: int,
    max_retries: int,
    settled: Container[str] = (),
    relative: GroupJudge | None = None,
) -> GroupRecord:
    """Run every episode of a group, and seal the group as one record.

    A training group stops as soon as too few of its episodes can still be scored, or at `plan.stop`. A failed
    episode whose id is in `settled` is not retried, because another attempt would end in the same way.

    Args:
        limiter: bounds the episodes that run at once, over all groups.

    Raises:
        ExceptionGroup: with a CandidateError: the group's candidate cannot go on; nothing is sealed.
    """
    first = ATTEMPTS_PER_START * start_number
    lost = 0

    async def tries(index: int) -> list[EpisodeRecord]:
        nonlocal lost
        records: list[EpisodeRecord] = []
        for attempt in range(first, first + max_retries + 1):
            queued_at = time.time()
            async with AsyncExitStack() as place:
                try:
                    async with plan.stop.guard():
                        await place.enter_async_context(limiter)
                except StoppedError:
                    return records
                records.append(await episode(replace(plan.task(index, attempt), queued_at=queued_at)))
            if records[-1].outcome is not Outcome.INFRA_ERROR or records[-1].episode_id in settled:
                return records
        lost += 1
        if plan.purpose is Purpose.TRAIN and has_lost_too_many(plan.size, lost):
            plan.stop.now(Abandoned(reason="TooFewScored", message=records[-1].error or "unknown"))
        return records

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(tries(index)) for index in range(plan.size)]
    attempts = [task.result() for task in running]
    group = GroupRecord(
        group_id=plan.group_id,
        purpose=plan.purpose,
        row=plan.slot.row,
        suite=plan.suite,
        epoch=plan.slot.epoch,
        step=plan.step,
        candidate=plan.candidate,
        sampled_by=plan.sampled_by,
        model=plan.model,
        episodes=[records[-1] for records in attempts if records],
        discarded=[record for records in attempts for record in records[:-1]],
        abandoned=plan.stop.why,
    )
    if relative is None:
        return group
    return await relative.judged(plan, group, range(first, first + max_retries + 1))
