"""A coordinator that outlives its replacement ends, and leaves nothing that confuses its successor."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from episodes import a_group
from faulty_servers import broker, fail, serving
from job_rig import Job, spec

from headway_analysis.billing.segments import total
from headway_api.exits import JobError
from headway_api.records import EpisodeRecord, GroupRecord, Purpose
from headway_api.sandbox_api import NOT_OWNER
from headway_coordinator.bounds import ROLLED_BACK, TOO_OLD, is_superseded, superseded
from headway_coordinator.dataset import position_of
from headway_coordinator.episode import Task
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.sandboxes import Broker
from headway_coordinator.spool import Spool, decode


def long_job(tmp_path: Path, **algorithm: Any) -> Job:
    of = spec(**algorithm)
    return Job(
        tmp_path, of.model_copy(update={"schedule": of.schedule.model_copy(update={"max_steps": 8})}), 40
    )


async def ended(running: asyncio.Task[None]) -> BaseException:
    with pytest.raises(BaseExceptionGroup) as found:
        await asyncio.wait_for(asyncio.shield(running), 20)
    return found.value


async def test_coordinator_ends_at_once_if_broker_has_another_owner() -> None:
    async with serving(broker("http://nowhere")) as leases, aiohttp.ClientSession() as http:
        leases.faults["POST /v1/leases"] = fail(409, NOT_OWNER, permanent=True)
        with pytest.raises(JobError) as refused:
            async with Broker(http, leases.url, "t", "job-0").lease("e", 60, 5):
                pass
    assert (refused.value.termination.reason, refused.value.permanent) == ("Superseded", False)
    assert leases.count("POST /v1/leases") == 1


async def test_coordinator_with_claimed_sandboxes_writes_nothing(
    tmp_path: Path,
) -> None:
    """The other's claim makes its episodes fail permanently, but no group is abandoned because of that."""
    job, claimed, plain = long_job(tmp_path), asyncio.Event(), Job.episode
    job.fails = lambda task: task.attempt < 100 and position_of(task.group_id) > 3

    async def episode(task: Task) -> EpisodeRecord:
        if job.fails(task):
            await claimed.wait()
        return await plain(job, task)

    job.episode = episode  # type: ignore[method-assign]
    async with job.coordinator() as (_, learner, older):
        await learner.run(steps=1)
        rotation = job.rotation
        async with job.coordinator() as (training, learner, newer):
            rotation.wanted = job.rotation.wanted
            claimed.set()
            assert is_superseded(await ended(older))
            await asyncio.gather(learner.run(), newer)
    assert training.state.finished == "MaxSteps"
    assert training.state.abandoned == {}
    groups = [decode(job.store.get(uri)) for uri in job.store.list(job.layout.train_groups)]
    assert [group.group_id for group in groups if group.abandoned] == []
    later = [group for group in groups if position_of(group.group_id) > 3]
    assert {e.attempt for group in later for e in group.episodes} == {100}


async def test_a_refused_lease_ends_the_job_and_not_just_the_episode(tmp_path: Path) -> None:
    job = long_job(tmp_path)

    async def refused(task: Task) -> EpisodeRecord:
        raise superseded("job-1 does")

    job.episode = refused  # type: ignore[method-assign]
    async with job.coordinator() as (_, learner, running):
        taking = asyncio.create_task(learner.run(steps=1))
        assert is_superseded(await ended(running))
        taking.cancel()
    assert job.store.list(job.layout.train_groups) == []


def test_only_its_own_error_counts_as_being_superseded() -> None:
    error = superseded("job-1 does")
    assert is_superseded(error)
    assert is_superseded(BaseExceptionGroup("", [ExceptionGroup("", [error])]))
    assert not is_superseded(None)
    assert not is_superseded(asyncio.CancelledError())
    assert not is_superseded(ExceptionGroup("", [ValueError(), JobError("StaleBatch", "x")]))


def quick(**algorithm: Any) -> Any:
    """A spec without validations, so that only training groups are sampled."""
    of = spec(batchSize=1, **algorithm)
    longer = of.schedule.model_copy(update={"max_steps": 10})
    quiet = of.evaluation.model_copy(update={"at_start": False, "every_steps": 0})
    return of.model_copy(update={"schedule": longer, "evaluation": quiet})


def write(job: Job, group: GroupRecord, *, billed: bool) -> None:
    """Write a group as a predecessor that was thought dead, before it is finally stopped."""
    Spool(job.store, job.layout).put(group)
    if billed:
        Ledger(job.store, job.layout).group(group)


@pytest.mark.parametrize("billed", [False, True])
@pytest.mark.parametrize(("behind", "given_up"), [(2, True), (1, True), (0, False)])
async def test_late_group_of_a_predecessor_is_trained_unless_too_old(
    tmp_path: Path, behind: int, given_up: bool, billed: bool
) -> None:
    """The late group replaces one that this process began `behind` steps after the late group's tokens."""
    job, plain, late = Job(tmp_path, quick(maxStepsOffPolicy=1), rows=40), Job.episode, ""

    async def episode(task: Task) -> EpisodeRecord:
        nonlocal late
        step = training.scheduler.active[position_of(task.group_id)].since
        if not late and step >= 2:
            late = task.group_id
            write(job, a_group(late, [1.0, 0.0], step=step - behind), billed=billed)
        return await plain(job, task)

    job.episode = episode  # type: ignore[method-assign]
    async with job.coordinator() as (training, learner, running):
        await asyncio.gather(learner.run(), running)
    assert training.state.finished == "MaxSteps"
    group = decode(job.store.get(job.layout.train_group(late)))
    trained = [group.group_id for batch in learner.batches for group in batch.groups]
    assert (late in trained) != given_up
    assert group.abandoned == (TOO_OLD if given_up else None)
    assert training.state.abandoned == ({"TooOld": 1} if given_up else {})
    assert bool(training.state.discarded["TooOld"]) == given_up
    assert total(job.ledger.days) == job.recounted()


@pytest.mark.parametrize("billed", [False, True])
async def test_late_group_of_rolled_back_weights_is_never_trained(tmp_path: Path, billed: bool) -> None:
    """The rollback step does not age a group, so the late group is young enough by age alone."""
    of = quick(maxStepsOffPolicy=1)
    at_start = of.evaluation.model_copy(update={"at_start": True})
    job = Job(tmp_path, of.model_copy(update={"evaluation": at_start}), rows=40)
    plain, late = Job.episode, ""

    async def episode(task: Task) -> EpisodeRecord:
        nonlocal late
        if not late and task.purpose is Purpose.TRAIN and training.state.went_back:
            late = task.group_id
            write(job, a_group(late, [1.0, 0.0], step=training.state.went_back - 1), billed=billed)
        return await plain(job, task)

    job.episode = episode  # type: ignore[method-assign]
    async with job.coordinator() as (training, learner, running):
        await learner.run(steps=3)
        training.remedies.order = "RollBack"
        await asyncio.gather(learner.run(), running)
    assert training.state.finished == "MaxSteps"
    assert decode(job.store.get(job.layout.train_group(late))).abandoned == ROLLED_BACK
    assert late not in [group.group_id for batch in learner.batches for group in batch.groups]
    assert total(job.ledger.days) == job.recounted()


@pytest.mark.parametrize("billed", [False, True])
async def test_successor_gives_up_groups_too_late_for_any_batch(tmp_path: Path, billed: bool) -> None:
    job = Job(tmp_path, quick(maxStepsOffPolicy=1), rows=40)
    async with job.coordinator() as (_, learner, _):
        await learner.run(steps=4)
    at = len(job.store.list(job.layout.train_groups))
    late = a_group(f"t0-{at:06d}", [1.0, 0.0], step=1)
    write(job, late, billed=billed)
    for abandoned in ({"TooOld": 1}, {}):
        async with job.coordinator() as (training, learner, running):
            assert training.state.abandoned == abandoned, "it is put on record"
            assert bool(training.state.discarded["TooOld"]) == bool(abandoned)
            assert total(job.ledger.days) == job.recounted()
            if not abandoned:
                await asyncio.gather(learner.run(), running)
    assert training.state.finished == "MaxSteps"
    assert late.group_id not in [group.group_id for batch in learner.batches for group in batch.groups]
    assert total(job.ledger.days) == job.recounted()
