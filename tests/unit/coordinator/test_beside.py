"""Validations beside training: their order, maximum number, restarts, and which weights are kept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from job_rig import Job, manifest, spec

from headway_analysis.billing.segments import total
from headway_api.records import Batch, EpisodeRecord, Purpose
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator.engines.router import Router
from headway_coordinator.episode import Task
from headway_coordinator.sandboxes import PoolState
from headway_coordinator.scheduler.choice import CHOICES, Order
from headway_coordinator.spool import decode
from headway_coordinator.stall import blocker
from headway_coordinator.validations import MAX_UNFINISHED


def validating(every: int = 2, steps: int = 4, **algorithm: Any) -> RLTrainingJobSpec:
    of = spec(**algorithm)
    return of.model_copy(
        update={
            "evaluation": of.evaluation.model_copy(update={"every_steps": every}),
            "schedule": of.schedule.model_copy(update={"max_steps": steps}),
            "rollout": of.rollout.model_copy(update={"max_concurrency": 16}),
        }
    )


class Gate:
    """Holds back the validation episodes of each step that is not in `steps`."""

    def __init__(self, job: Job, *open_steps: int) -> None:
        self.opened = asyncio.Condition()
        self.steps = set(open_steps)
        self._plain = job.episode
        job.episode = self.episode  # type: ignore[method-assign]

    async def episode(self, task: Task) -> EpisodeRecord:
        if task.purpose is Purpose.VALIDATION:
            step = int(task.group_id[1:7])
            async with self.opened:
                await self.opened.wait_for(lambda: step in self.steps)
        return await self._plain(task)

    async def open(self, *steps: int) -> None:
        async with self.opened:
            self.steps.update(steps)
            self.opened.notify_all()


async def test_training_goes_on_while_a_step_validates_its_own_weights(tmp_path: Path) -> None:
    job = Job(tmp_path, validating(), beside=True)
    gate = Gate(job)
    async with job.coordinator() as (training, learner, running):
        await learner.run(steps=3)
        assert training.state.step == 3
        assert (training.state.evaluating, training.state.evaluations) == (0, {})
        assert [batch.validating for batch in learner.batches] == [[0], [0], [0, 2]]
        assert job.slot.wanted == [0], "one at a time"
        await gate.open(0, 2, 4)
        await asyncio.gather(learner.run(), running)
        assert sorted(training.state.evaluations) == [0, 2, 4]
    assert job.rotation.wanted[-1] == 4
    assert job.slot.wanted == [0, 2, 4]
    assert job.slot.released > 0, "nothing is left in the slot"
    for step in (0, 2, 4):
        groups = [decode(job.store.get(uri)) for uri in job.store.list(job.layout.validation_groups(step))]
        spans = [span for g in groups for e in g.episodes for row in e.rows for span in row.versions]
        assert {span.version.step for span in spans} == {step}
    assert learner.finished is not None
    assert sorted(learner.finished.validated) == [0, 2, 4]


@pytest.mark.parametrize("order", CHOICES)
async def test_both_ways_of_validating_find_the_same(tmp_path: Path, order: Order) -> None:
    found = {}
    for beside in (False, True):
        job = Job(tmp_path / str(beside), validating(sampler=order), beside=beside)
        async with job.coordinator() as (training, learner, running):
            await asyncio.gather(learner.run(), running)
            batches = [[group.group_id for group in batch.groups] for batch in learner.batches]
            found[beside] = training.state.evaluations, batches, total(job.ledger.days)
    assert found[True][0] == found[False][0]
    if order == "in_order":
        assert found[True][1] == found[False][1], "the same batches"
        assert found[True][2] == found[False][2], "the same bill"


async def test_learner_waits_when_too_many_validations_are_unfinished(tmp_path: Path) -> None:
    job = Job(tmp_path, validating(every=1), beside=True)
    gate = Gate(job)
    async with job.coordinator() as (training, learner, running):
        await learner.run(steps=MAX_UNFINISHED)
        assert training.validations.unfinished == [0, 1, 2]
        assert await training.wait_for_batch(3, 0.05) is None
        assert not training.batch_ready
        await gate.open(0)
        assert isinstance(await training.wait_for_batch(3, 10), Batch)
        assert training.validations.unfinished == [1, 2]
        await gate.open(1, 2, 3, 4)
        await asyncio.gather(learner.run(), running)
        assert sorted(training.state.evaluations) == [0, 1, 2, 3, 4]


async def test_the_job_ends_with_its_last_validation(tmp_path: Path) -> None:
    job = Job(tmp_path, validating(), beside=True)
    gate = Gate(job, 0, 2)
    async with job.coordinator() as (training, learner, running):
        await learner.run(steps=4)
        while training.state.evaluating != 4:
            await asyncio.sleep(0.001)
        assert (training.state.finished, running.done()) == (None, False)
        assert await training.batch(5) is None
        await gate.open(4)
        await asyncio.gather(learner.run(), running)
    assert learner.finished is not None


async def test_restart_samples_only_groups_unfinished_validations_lack(tmp_path: Path) -> None:
    job = Job(tmp_path, validating(), beside=True)
    gate = Gate(job, 0, 2)
    job.pause = lambda task: 1000.0 if task.group_id == "v000002-000001" else 0.0
    async with job.coordinator() as (training, learner, _):
        await learner.run(steps=3)
        while len(job.store.list(job.layout.validation_groups(2))) < 2:
            await asyncio.sleep(0.001)
        assert sorted(training.state.evaluations) == [0]
    tried = len(job.tasks)
    job.pause = lambda task: 0.0
    await gate.open(4)
    async with job.coordinator() as (training, learner, running):
        assert training.validations.unfinished == [2]
        await asyncio.gather(learner.run(), running)
        assert sorted(training.state.evaluations) == [0, 2, 4]
        assert job.slot.wanted == [2, 4]
        again = {task.group_id for task in job.tasks[tried:] if task.group_id.startswith("v000002")}
        assert again == {"v000002-000001"}
        assert total(job.ledger.days) == job.recounted()


async def test_weights_that_are_gone_are_not_validated_after_a_restart(tmp_path: Path) -> None:
    """This can happen if evaluation.everySteps was 0 while the steps were trained."""
    job = Job(tmp_path, validating(every=0), beside=True)
    async with job.coordinator() as (_, learner, _):
        await learner.run(steps=3)
    job.store.delete(job.store.list(job.layout.weights(1)))
    job.spec = validating(every=1)
    async with job.coordinator() as (training, learner, running):
        assert training.validations.unfinished == [2]
        await asyncio.gather(learner.run(), running)
        assert sorted(training.state.evaluations) == [0, 2, 3, 4]


async def test_validation_uses_weights_that_are_published_again(tmp_path: Path) -> None:
    job = Job(tmp_path, validating(), beside=True)
    gate = Gate(job)
    async with job.coordinator() as (training, learner, _):
        report = learner.commit(0, [])
        await training.report(report)
        while training.state.evaluating != 0:
            await asyncio.sleep(0.001)
        resumed_at = manifest(0, incarnation=1)
        await training.report(
            report.model_copy(update={"version": resumed_at.version, "weights": resumed_at})
        )
        assert job.slot.wanted == [0, 0]
        await gate.open(0)


async def test_stall_names_servers_that_lack_the_validated_weights(tmp_path: Path) -> None:
    job = Job(tmp_path, validating(every=1, maxStepsOffPolicy=0), beside=True)
    Gate(job)
    async with job.coordinator() as (training, learner, _):
        await learner.run(steps=2)
        assert job.slot.router is not job.rotation.router
        job.slot.router.unannounced = "it refuses the adapter"
        quiet = PoolState(ready=0, starting=0, leased=0)
        router = Router()
        router.problem = lambda: None  # type: ignore[method-assign]
        message = blocker(training, router, quiet, 600.0).words
    assert message == "rollout servers, for the validation: it refuses the adapter"
