"""A training job under a budget. It stops and continues once the budget is raised, or it drains."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from episodes import SAMPLED, sealed
from job_rig import Job, spec

from headway_api.artifacts import Layout
from headway_api.prices import DEFAULT
from headway_api.records import Batch, EpisodeRecord, Purpose
from headway_api.spec.lifecycle import BudgetSpec
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.store import FileStore
from headway_coordinator import group as groups
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.budget.gate import Budget
from headway_coordinator.budget.priced import Priced
from headway_coordinator.budget.worst import Bill, Limits
from headway_coordinator.dataset import Slot
from headway_coordinator.episode import Task
from headway_coordinator.gateway.asks import Sampling
from headway_coordinator.ledger.segments import Ledger

GROUP = 2 * 2 * SAMPLED
"""Tokens that a group samples: two episodes of two turns each."""
WORST = 2 * 2 * spec().rollout.sampling.max_tokens
"""Tokens that such a group may sample at most."""


def maximum(tokens: int, **more: Any) -> BudgetSpec:
    return BudgetSpec.model_validate({"tokens": {"sample": tokens}, **more})


def ids(batches: list[Batch]) -> list[list[str]]:
    return [[group.group_id for group in batch.groups] for batch in batches]


def short() -> RLTrainingJobSpec:
    """A spec with short turns, so that the worst case is close to the actual usage."""
    whole = spec()
    sampling = whole.rollout.sampling.model_copy(update={"max_tokens": SAMPLED + 1})
    return whole.model_copy(update={"rollout": whole.rollout.model_copy(update={"sampling": sampling})})


async def until_exhausted(job: Job) -> None:
    while job.budget.exhausted_at is None:
        await asyncio.sleep(0.01)


async def test_a_job_stops_below_its_budget_and_continues_there(tmp_path: Path) -> None:
    unbounded = Job(tmp_path / "unbounded", short())
    async with unbounded.coordinator() as (_, learner, running):
        await learner.run()
        await running
    whole = ids(learner.batches)
    job = Job(tmp_path / "bounded", short())
    batches = []
    for many in (3, 5, 20):
        job.money = maximum(many * GROUP + 4)
        async with job.coordinator() as (training, learner, running):
            learning = asyncio.create_task(learner.run())
            stops = asyncio.create_task(until_exhausted(job))
            await asyncio.wait({stops, running}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await learning
            used = job.budget.account.standings()[0]
            assert used.spent <= used.limit.maximum
            assert running.done() or used.spent + WORST > used.limit.maximum - used.reserved
            for task in (learning, stops):
                task.cancel()
            await asyncio.gather(learning, stops, return_exceptions=True)
            batches += ids(learner.batches)
    assert training.state.finished == "MaxSteps"
    assert batches == whole


@pytest.mark.parametrize("many", [3, 4])
async def test_a_draining_job_trains_whole_batches_and_ends(tmp_path: Path, many: int) -> None:
    job = Job(tmp_path, short())
    job.money = maximum(many * GROUP + 4, onExhausted="Drain")
    async with job.coordinator() as (training, learner, running):
        await learner.run()
        await running
    assert learner.finished is not None
    assert learner.finished.reason == training.state.finished == "BudgetExhausted"
    used = job.budget.account.standings()[0]
    assert used.spent <= used.limit.maximum
    assert used.reserved == 0
    assert len(learner.batches) == many // 2
    assert training.state.abandoned["BudgetExhausted"] > 0
    assert max(training.state.evaluations) == training.state.step, "the last step is validated"


async def test_256_episodes_at_once_stay_within_the_budget(tmp_path: Path) -> None:
    """Episodes end at different times, and one in eight is lost.

    The test checks the ledger after each growth.
    """
    size, chance, ended = 8, random.Random(1), 0
    ledger = Ledger(FileStore(), Layout(f"file://{tmp_path}", "ns", "job", "uid"))
    limits, limiter, max_at_once, running = Limits(50, 2, 10, 1), AdaptiveSemaphore(256), 0, 0
    full, worst_group = asyncio.Event(), size * 2 * (SAMPLED + 1)
    budget = Budget(maximum(33 * worst_group), Priced(ledger, lambda: DEFAULT))

    async def episode(task: Task) -> EpisodeRecord:
        nonlocal running, max_at_once
        running += 1
        max_at_once = max(max_at_once, running)
        if running == limiter.ceiling:
            full.set()
        await full.wait()
        for _ in range(chance.randrange(20)):
            await asyncio.sleep(0)
        running -= 1
        reward = None if chance.random() < 1 / 8 else 1.0
        return sealed(task.group_id, task.index, reward=reward, attempt=task.attempt)

    async def live(number: int) -> None:
        nonlocal ended
        slot = Slot(position=number, epoch=0, row=number)
        plan = groups.Plan(slot, Purpose.TRAIN, 0, {}, size, Sampling(1.0, 1.0, SAMPLED + 1), 1)
        async with budget.group(plan, Bill(Purpose.TRAIN), limits, 2 * (SAMPLED + 1)) as held:
            group = await groups.run(plan, held.watched(episode), limiter, start_number=0, max_retries=1)
            ledger.group(group)
            (limit,) = budget.account.standings()
            assert limit.spent <= limit.limit.maximum
        ended += 1

    tasks = [asyncio.create_task(live(number)) for number in range(60)]
    while budget.exhausted_at is None:
        await asyncio.sleep(0)
        assert budget.account.standings()[0].left >= 0
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [task for task in tasks if not task.cancelled() and task.exception()] == []
    assert max_at_once == 256
    (limit,) = budget.account.standings()
    assert limit.limit.maximum - worst_group < limit.spent <= limit.limit.maximum
    assert 33 < ended < 60
