"""A learner resumes at an older step: the coordinator follows, and steps are taken and billed again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest
from episodes import version
from job_rig import Job, manifest, report, spec
from role_keys import TO_COORDINATOR

from headway_analysis.billing.segments import total
from headway_api.exits import RESTART, JobError
from headway_api.records import StepReport
from headway_coordinator.bounds import StepConflictError, rollback
from headway_coordinator.scheduler.choice import CHOICES, Order


def resumed(job: Job, step: int, incarnation: int) -> StepReport:
    """The report with which a learner announces that it resumes at `step`, in a new incarnation."""
    before = StepReport.model_validate_json(job.store.get(job.layout.checkpoint_report(step, 0)))
    weights = manifest(step, incarnation)
    return before.model_copy(update={"version": weights.version, "weights": weights})


def roll_back(job: Job, to: int) -> StepReport:
    """Set the pointer back to a step, and store the report of a learner that resumes there."""
    resumed_at = resumed(job, to, incarnation=1)
    job.store.put(job.layout.latest, json.dumps({"step": to}).encode())
    for uri in (job.layout.checkpoint_report(to, 0), job.layout.step_history(to)):
        job.store.put(uri, resumed_at.model_dump_json().encode())
    return resumed_at


@pytest.mark.parametrize("order", CHOICES)
async def test_the_coordinator_restarts_at_the_learners_step(tmp_path: Path, order: Order) -> None:
    job = Job(tmp_path, spec(sampler=order, maxStepsOffPolicy=2))
    job.pause = lambda task: 0.3 if task.group_id == "t0-000002" else 0.0
    async with job.coordinator() as (training, learner, running):
        await learner.run(steps=3)
        first = {batch.step: [g.group_id for g in batch.groups] for batch in learner.batches}
        assert sorted(training.state.evaluations) == [0, 2]
        rolled_back = roll_back(job, to=1)
        async with aiohttp.ClientSession() as http:
            url, headers = f"{learner._url}/v1/steps", {"Authorization": f"Bearer {TO_COORDINATOR}"}
            async with http.post(url, data=rolled_back.model_dump_json(), headers=headers) as answer:
                assert answer.status == 503, "the learner is to come back, not to give up"
                assert "was at step 3 and resumed at step 1" in (await answer.json())["message"]
        with pytest.raises(ExceptionGroup) as ended:
            await running
        assert ended.group_contains(JobError, match="version 1.1")
    measured = [task.episode_id for task in job.tasks if task.group_id.startswith("v000002")]
    async with job.coordinator() as (training, learner, running):
        assert training.state.step == 1
        assert sorted(training.state.evaluations) == [0], "step 2 is not taken yet"
        learner._publish = lambda step: manifest(step, incarnation=1)
        await learner.run()
        await running
        assert sorted(training.state.evaluations) == [0, 2, 4]
    again = {batch.step: [g.group_id for g in batch.groups] for batch in learner.batches}
    assert sorted(again) == [2, 3, 4]
    assert [again[2], again[3]] == [first[2], first[3]], "no acknowledged group is lost"
    assert [task.episode_id for task in job.tasks if task.group_id.startswith("v000002")] == measured
    tried = [task.episode_id for task in job.tasks]
    assert len(tried) == len(set(tried))
    assert total(job.ledger.days) == job.recounted(), "and no token is billed twice"


async def test_a_learner_at_a_step_without_a_pointer_is_refused(tmp_path: Path) -> None:
    job = Job(tmp_path)
    async with job.coordinator() as (training, learner, running):
        await learner.run(steps=3)
        for incarnation in (0, 1):
            with pytest.raises(StepConflictError, match="step 1 does not follow step 3"):
                await training.report(resumed(job, 1, incarnation))
        assert not running.done()


async def test_reports_of_a_replaced_learner_are_refused(tmp_path: Path) -> None:
    """The old learner lost its connection after a step.

    It reports the step once its successor has taken the same one.
    """
    job = Job(tmp_path)
    async with job.coordinator() as (training, learner, running):
        await learner.run(steps=2)
        old = training.state.reports[-1]
        resumed_at = manifest(2, incarnation=1)
        await training.report(old.model_copy(update={"version": resumed_at.version, "weights": resumed_at}))
        with pytest.raises(StepConflictError, match=r"from an earlier learner than version 1\.2"):
            await training.report(old)
        assert training.state.reports[-1].weights == resumed_at
        following = old.model_copy(update={"step": 3, "version": version(3)})
        with pytest.raises(StepConflictError, match="from an earlier learner"):
            await training.report(following)
        assert not running.done()


def test_only_a_recorded_newer_incarnation_is_a_rollback(tmp_path: Path) -> None:
    last = report(5, 1)
    fault = rollback(report(3, 2), last, latest=version(3, 2))
    assert fault is not None
    assert fault.code == RESTART, "nothing failed: no restart is counted"
    assert rollback(report(3, 1), last, latest=version(3, 1)) is None
    assert rollback(report(3, 2), last, latest=version(5, 1)) is None
    assert rollback(report(3, 2), last, latest=None) is None
    assert rollback(report(5, 2), last, latest=version(5, 2)) is None
    assert rollback(report(7, 2), last, latest=version(7, 2)) is None


async def test_a_job_waits_at_its_end_for_the_last_checkpoint(tmp_path: Path) -> None:
    job = Job(tmp_path)
    async with job.coordinator() as (training, learner, running):
        await learner.run()
        await running
        last = training.state.reports[-1]
        training.state.reports[-1] = last.model_copy(update={"durable": last.step - 1})
        waiting = asyncio.create_task(training.until_durable())
        await asyncio.sleep(0)
        assert not waiting.done()
        await training.report(last)
        await waiting


async def test_finished_job_follows_learner_lost_before_checkpoint(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path)
    async with job.coordinator() as (training, learner, running):
        await learner.run()
        await running
        last = training.state.reports[-1]
        training.state.reports[-1] = last.model_copy(update={"durable": last.step - 1})
        waiting = asyncio.create_task(training.until_durable())
        with pytest.raises(JobError, match="resumed at step 1"):
            await training.report(roll_back(job, to=1))
        with pytest.raises(JobError, match="resumed at step 1"):
            await waiting
