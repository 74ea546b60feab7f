"""Validations: when they run, how failed rows count, and what a restart reads back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from episodes import version
from job_rig import Job, spec

from headway_analysis.billing.segments import total
from headway_analysis.measures.episodes import Evaluation
from headway_api.artifacts import Layout
from headway_api.exits import JobError
from headway_api.prices import DEFAULT
from headway_api.records import Batch, UsageClass
from headway_coordinator import projections
from headway_coordinator.spool import decode
from headway_coordinator.state import State


async def test_validation_is_a_barrier_between_steps(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.pause = lambda task: 0.05 if task.group_id.startswith("v") else 0.0
    async with job.coordinator() as (training, learner, _):
        async with aiohttp.ClientSession() as http:
            await learner.announce(http, learner.commit(0, []))
            assert await training.batch(1) is None
            assert projections.progress(training, 0, version(0), None).evaluating == 0
            found = await learner.take(http, 1)
        assert isinstance(found, Batch)
        assert training.state.evaluations[0].episodes == 3
        assert projections.progress(training, 0, version(0), None).evaluating is None
    validated = [task for task in job.tasks if task.group_id.startswith("v")]
    assert all(task.sampling.temperature == 0 for task in validated)


async def test_every_episode_of_a_validation_is_progress(tmp_path: Path) -> None:
    job = Job(tmp_path)
    last = "v000000-000002"
    job.pause = lambda task: 60.0 if task.group_id == last else 0.01
    async with job.coordinator() as (training, learner, _):
        await training.report(learner.commit(0, []))
        reported = projections.progress(training, 0, version(0), None).updated_time
        while training.state.ended["Completed", "validation"] < 2:
            await asyncio.sleep(0.001)
        moved = projections.progress(training, 0, version(0), None).updated_time
        assert training.state.evaluating == 0
    assert reported is not None
    assert moved is not None
    assert (moved - reported).total_seconds() >= 0.01, "though no step was taken and it is not over"


async def test_a_validation_shows_its_score_with_an_interval(tmp_path: Path) -> None:
    job = Job(tmp_path)
    async with job.coordinator() as (training, learner, running):
        await asyncio.gather(learner.run(), running)
        validation = projections.validation(projections.curve(training.state), training.state.score)
    assert validation is not None
    mean = training.state.evaluations[4].external_score
    assert validation.score is not None
    assert validation.score.startswith(f"{mean:.2f} ")
    async with job.coordinator() as (training, _, _):
        assert projections.validation(projections.curve(training.state), training.state.score) == validation


async def test_a_failed_validation_row_is_recorded_and_not_billed(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.fails = lambda task: task.group_id == "v000002-000001"
    async with job.coordinator() as (training, learner, running):
        await asyncio.gather(learner.run(), running)
        before = training.state.evaluations
        assert [(e.episodes, e.failed) for _, e in sorted(before.items())] == [(3, 0), (2, 1), (3, 0)]
    used = total(job.ledger.days)
    assert used[UsageClass.DISCARDED] > 0
    assert used == job.recounted()
    tried = len(job.tasks)
    async with job.coordinator() as (training, _, running):
        assert training.state.evaluations == before
        await running
    assert len(job.tasks) == tried
    assert total(job.ledger.days) == used


async def test_wholly_failed_validation_is_retried_after_a_restart(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.fails = lambda task: task.group_id.startswith("v")
    for _ in range(2):
        async with job.coordinator() as (training, learner, running):
            async with aiohttp.ClientSession() as http:
                await learner.announce(http, learner.resume())
            with pytest.raises(ExceptionGroup) as failed:
                await running
            assert failed.group_contains(JobError, match="lost")
            assert training.state.evaluating is None
    job.fails = lambda task: task.episode_id == "v000000-000002-0-200"
    async with job.coordinator() as (training, learner, _):
        assert training.state.evaluations == {}
        await learner.run(steps=1)
        assert training.state.evaluations[0].failed == 0
    async with job.coordinator() as (training, _, _):
        assert training.state.evaluations[0].episodes == 3
        assert total(job.ledger.days) == job.recounted()
    attempts = [task.attempt for task in job.tasks if task.group_id == "v000000-000000"]
    assert attempts == [0, 1, 100, 101, 200]


async def test_interrupted_validation_resumes_with_unanswered_rows(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path)
    job.fails = lambda task: task.group_id == "v000000-000001"
    job.pause = lambda task: 60.0 if task.group_id == "v000000-000002" else 0.0
    async with job.coordinator() as (_, learner, _), aiohttp.ClientSession() as http:
        await learner.announce(http, learner.resume())
        while not (
            job.store.list(job.layout.failed_groups) and job.store.list(job.layout.validation_groups(0))
        ):
            await asyncio.sleep(0.001)
    tried = len(job.tasks)
    job.fails = job.pause = lambda task: False
    async with job.coordinator() as (training, learner, _):
        await learner.run(steps=1)
        assert (training.state.evaluations[0].episodes, training.state.evaluations[0].failed) == (3, 0)
    again = {task.group_id for task in job.tasks[tried:] if task.group_id.startswith("v000000")}
    assert again == {"v000000-000001", "v000000-000002"}


async def test_a_restart_reads_no_group_of_a_finished_validation(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.fails = lambda task: task.group_id == "v000002-000001"
    shown: dict[int, dict[str, float]] = {}
    job.on_validation = shown.__setitem__
    async with job.coordinator() as (training, learner, running):
        await asyncio.gather(learner.run(), running)
        before, found, bill = training.state.evaluations, dict(shown), total(job.ledger.days)
    assert sorted(found) == sorted(before) == [0, 2, 4]
    summary = json.loads(job.store.get(job.layout.validation(2)))
    groups = [decode(job.store.get(uri)) for uri in job.store.list(job.layout.validation_groups(2))]
    assert {name: row["rewards"] for name, row in summary["rows"].items()} == {
        group.group_id: [episode.reward for episode in group.episodes] for group in groups
    }
    for uri in job.store.list(job.layout.all_validation_groups):
        job.store.put(uri, b"nobody reads this")
    shown.clear()
    async with job.coordinator() as (training, _, running):
        assert training.state.evaluations == before
        assert shown == found
        await running
    assert total(job.ledger.days) == bill


@pytest.mark.parametrize("damage", ["no summary", "of another version", "of other groups"])
async def test_missing_or_invalid_summary_is_rebuilt_from_groups(tmp_path: Path, damage: str) -> None:
    job = Job(tmp_path)
    async with job.coordinator() as (training, learner, running):
        await asyncio.gather(learner.run(), running)
        before = training.state.evaluations
    uri, tried = job.layout.validation(2), len(job.tasks)
    written = job.store.get(uri)
    found = json.loads(written)
    if damage == "no summary":
        job.store.delete([uri])
    elif damage == "of another version":
        job.store.put(uri, json.dumps(found | {"median": 0.5}).encode())
    else:
        del found["rows"]["v000002-000001"]
        job.store.put(uri, json.dumps(found | {"reward": 99.0}).encode())
    async with job.coordinator() as (training, _, running):
        assert training.state.evaluations == before
        await running
    assert len(job.tasks) == tried
    assert job.store.get(uri) == written


async def test_a_crash_before_the_summary_costs_no_episode(tmp_path: Path) -> None:
    job = Job(tmp_path)
    put = job.store.put

    def fails(uri: str, data: bytes) -> None:
        if uri == job.layout.validation(0):
            raise OSError("the store is gone")
        put(uri, data)

    job.store.put = fails  # type: ignore[method-assign]
    async with job.coordinator() as (training, learner, running):
        async with aiohttp.ClientSession() as http:
            await learner.announce(http, learner.resume())
        with pytest.raises(ExceptionGroup):
            await running
        assert training.state.evaluations == {}, "what is not kept is not shown"
    job.store.put = put  # type: ignore[method-assign]
    tried = len(job.tasks)
    async with job.coordinator() as (training, _, _):
        assert training.state.evaluations[0].episodes == 3
        assert len(job.tasks) == tried
        assert total(job.ledger.days) == job.recounted()


async def test_success_before_training_is_the_untrained_models(tmp_path: Path) -> None:
    evaluations = {step: Evaluation(step, 0.5, 0.5, 0.5, 3, 0) for step in (2, 0, 4)}

    def report(*steps: int) -> dict[str, Any]:
        state = State(evaluations={step: evaluations[step] for step in steps})
        return projections.report(
            "job", spec(), Layout("s3://b/o", "ns", "job", "uid"), state, {}, DEFAULT, 0
        )

    assert (report(0, 2)["before"], report(0, 2)["after"]["step"]) == (evaluations[0]._asdict(), 2)
    assert report(2, 4)["before"] is None
    assert report()["before"] is None
