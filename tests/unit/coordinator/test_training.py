"""A whole training job with a store in a folder: order, staleness, restarts at any point, the learner API."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import aiohttp
import pytest
from episodes import a_group, version
from hypothesis import given, settings
from hypothesis import strategies as st
from job_rig import Job, spec
from role_keys import TO_COORDINATOR

from headway_analysis.billing.segments import total
from headway_api.exits import JobError
from headway_api.records import Abandoned, Batch, EpisodeRecord, StepReport, UsageClass
from headway_api.sandbox_api import PoolState, Problem
from headway_api.staleness import as_of
from headway_coordinator import batches as batches_module
from headway_coordinator import stall
from headway_coordinator.bounds import NO_STEP_LEFT, StepConflictError, check_staleness
from headway_coordinator.engines.router import Endpoint, Router
from headway_coordinator.episode import Task
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.scheduler.choice import CHOICES, Order
from headway_coordinator.scheduler.slots import BatchScheduler
from headway_coordinator.spool import Spool, decode
from headway_coordinator.stall import AFTER_SECONDS, LEARNER_SECONDS, blocker, training_watch


def ids(batches: list[Batch]) -> list[list[str]]:
    return [[group.group_id for group in batch.groups] for batch in batches]


async def test_a_job_takes_its_steps_in_data_order_and_ends(tmp_path: Path) -> None:
    job = Job(tmp_path)
    async with job.coordinator() as (training, learner, running):
        await learner.run()
        await running
    assert ids(learner.batches) == [
        ["t0-000000", "t0-000001"],
        ["t0-000002", "t0-000003"],
        ["t0-000004", "t1-000005"],
        ["t1-000006", "t1-000007"],
    ]
    assert learner.finished is not None
    assert learner.finished.reason == "MaxSteps"
    assert sorted(training.state.evaluations) == [0, 2, 4]
    assert job.rotation.wanted == [0, 1, 2, 3, 4]
    assert training.state.ended["Completed", "train"] == 16
    assert job.ledger.episodes == 16


class Timed(Job):
    """A job whose episodes record their times."""

    async def episode(self, task: Task) -> EpisodeRecord:
        began = time.time()
        made = await super().episode(task)
        times = {"queued_at": task.queued_at, "started_at": began, "finished_at": time.time()}
        return made.model_copy(update=times)


async def test_a_batch_says_what_it_waited_for(tmp_path: Path) -> None:
    job = Timed(tmp_path, spec(maxStepsOffPolicy=0))
    job.pause = lambda task: 0.05
    async with job.coordinator() as (_, learner, running):
        begun = time.time()
        await learner.run()
        await running
    sent = [batch.waits for batch in learner.batches]
    assert len(sent) == 4
    times = [each.sent_at for each in sent if each is not None]
    assert begun < times[0] < times[1] < times[2] < times[3] < time.time()
    for batch, waits in zip(learner.batches, sent, strict=True):
        assert waits is not None
        kinds = [wait.kind for wait in waits.waits]
        assert kinds[0] == "start"
        assert {"validation", "budget", "storing"} <= set(kinds)
        ended = max(each.finished_at for group in batch.groups for each in group.episodes)
        stored = waits.waits[-1]
        assert stored.kind == "storing"
        assert stored.began <= stored.ended <= waits.sent_at
        assert ended <= stored.ended
    # Steps 0 and 2 are validated before the next batch, with one episode for each row.
    held = [wait for wait in sent[3].waits if wait.kind == "validation"] if sent[3] is not None else []
    assert [wait.ended - wait.began > 0.04 for wait in held] == [True, True]


async def test_an_epoch_that_ends_first_ends_the_job(tmp_path: Path) -> None:
    job = Job(
        tmp_path, spec().model_copy(update={"schedule": spec().schedule.model_copy(update={"max_epochs": 1})})
    )
    async with job.coordinator() as (training, learner, running):
        await asyncio.gather(learner.run(), running)
    assert learner.finished is not None
    assert learner.finished.reason == "MaxEpochs"
    assert len(learner.batches) == training.steps == 2
    assert sorted(training.state.evaluations) == [0, 2]


@pytest.mark.parametrize("order", CHOICES)
@pytest.mark.parametrize("lag", [0, 1, 2])
async def test_no_token_is_older_than_allowed(tmp_path: Path, lag: int, order: Order) -> None:
    job = Job(tmp_path, spec(maxStepsOffPolicy=lag, sampler=order))
    job.pause = lambda task: 0.002 * (task.sampling_seed % 7)
    async with job.coordinator() as (_, learner, running):
        await asyncio.gather(learner.run(), running)
    seen = [
        batch.step - 1 - span.version.step
        for batch in learner.batches
        for group in batch.groups
        for episode in group.scored
        for row in episode.rows
        for span in row.versions
    ]
    assert max(seen) <= lag
    assert min(seen) >= 0


async def test_abandoned_group_leaves_the_order_and_frees_its_slot(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.fails = lambda task: task.group_id == "t0-000001"
    async with job.coordinator() as (training, learner, running):
        await asyncio.gather(learner.run(), running)
    trained = [group for batch in ids(learner.batches) for group in batch]
    assert "t0-000001" not in trained
    assert len(trained) == 8
    assert len([task for task in job.tasks if task.group_id == "t0-000001"]) == 4
    assert training.state.retried == {"train": 2, "validation": 0}


async def test_given_up_group_has_its_reason_and_ends_its_episodes(tmp_path: Path) -> None:
    job = Job(tmp_path, spec(groupSize=3))
    job.fails = lambda task: task.group_id == "t0-000001" and task.index > 0
    job.pause = lambda task: 1000.0 if (task.group_id, task.index) == ("t0-000001", 0) else 0.0
    async with job.coordinator() as (training, learner, running):
        await asyncio.gather(learner.run(), running)
    assert training.state.abandoned == {"TooFewScored": 1}
    group = decode(job.store.get(job.layout.train_group("t0-000001")))
    assert group.abandoned == Abandoned(reason="TooFewScored", message="lost")
    counted = job.ledger.days
    assert training.state.discarded["TooFewScored"] == total(counted)[UsageClass.DISCARDED] > 0
    assert total(counted) == job.recounted()


@pytest.mark.parametrize("order", CHOICES)
async def test_a_group_that_no_step_can_train_is_stopped(tmp_path: Path, order: Order) -> None:
    """Five groups suffice for two steps of two groups.

    With two groups lost, one step is left, and one group is left over.
    """
    of = spec(sampler=order)
    once = of.schedule.model_copy(update={"max_epochs": 1})
    wide = of.rollout.model_copy(update={"max_concurrency": 10})
    job = Job(tmp_path, of.model_copy(update={"schedule": once, "rollout": wide}))
    job.fails = lambda task: task.group_id in ("t0-000000", "t0-000001")
    job.pause = lambda task: 1000.0 if task.group_id == "t0-000004" else 0.0
    all_begun, plain = asyncio.Event(), job.episode

    async def episode(task: Task) -> EpisodeRecord:
        if task.group_id == "t0-000004":
            all_begun.set()
        if task.group_id in ("t0-000002", "t0-000003"):
            await all_begun.wait()
        return await plain(task)

    job.episode = episode  # type: ignore[method-assign]
    async with job.coordinator() as (training, learner, running):
        await asyncio.gather(learner.run(), running)
    assert ids(learner.batches) == [["t0-000002", "t0-000003"]]
    assert learner.finished is not None
    assert learner.finished.reason == "MaxEpochs"
    assert training.state.abandoned == {"TooFewScored": 2, "NoStepLeft": 1}
    assert training.scheduler.active == {}
    assert decode(job.store.get(job.layout.train_group("t0-000004"))).abandoned == NO_STEP_LEFT
    assert total(job.ledger.days) == job.recounted()
    async with job.coordinator() as (training, learner, running):
        await running
        assert training.state.finished == "MaxEpochs", "a successor knows that as well"


@settings(max_examples=16)
@given(seed=st.integers(0, 10_000), beside=st.booleans())
def test_a_coordinator_may_die_at_any_moment(
    seed: int, beside: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    asyncio.run(_dies_at_any_moment(seed, tmp_path_factory.mktemp("job"), beside))


async def _dies_at_any_moment(seed: int, folder: Path, beside: bool) -> None:
    chance = random.Random(seed)
    job = Job(folder, beside=beside)
    job.fails = lambda task: random.Random(task.episode_id).random() < 0.25
    job.pause = lambda task: chance.random() * 0.01
    batches: list[Batch] = []
    for life in range(30):
        async with job.coordinator() as (training, learner, running):
            alive = asyncio.gather(learner.run(), running)
            await asyncio.wait([alive], timeout=None if life > 4 else chance.random() * 0.15)
            batches += learner.batches
            if alive.done() and not isinstance(alive.exception(), JobError):
                alive.result()
                break
            alive.cancel()
            await asyncio.gather(alive, return_exceptions=True)
    steps = {batch.step: [group.group_id for group in batch.groups] for batch in batches}
    assert sorted(steps) == [1, 2, 3, 4]
    again = [
        [g.group_id for g in batch.groups]
        for batch in batches
        if steps[batch.step] != [g.group_id for g in batch.groups]
    ]
    assert again == []
    trained = [group for step in steps.values() for group in step]
    assert len(trained) == len(set(trained)) == 8
    assert sorted(training.state.evaluations) == [0, 2, 4]
    tried = [task.episode_id for task in job.tasks]
    assert len(tried) == len(set(tried))
    rebuilt = Ledger(job.store, job.layout)
    rebuilt.load()
    assert total(rebuilt.days) == total(job.ledger.days) == job.recounted()


async def test_a_step_reported_twice_changes_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path)
    async with job.coordinator() as (training, learner, _):
        await learner.run(steps=1)
        report = learner.resume()
        async with aiohttp.ClientSession() as http:
            await asyncio.gather(*(learner.announce(http, report) for _ in range(3)))
        assert training.state.step == 1
        with pytest.raises(StepConflictError, match="does not follow"):
            await training.report(learner.commit(5, []))
        with pytest.raises(StepConflictError):
            await training.batch(7)


async def test_a_report_with_other_groups_than_the_batch_is_refused(tmp_path: Path) -> None:
    job = Job(tmp_path)
    async with job.coordinator() as (training, learner, _), aiohttp.ClientSession() as http:
        await learner.announce(http, learner.commit(0, []))
        batch = await learner.take(http, 1)
        assert isinstance(batch, Batch)
        wrong = learner.commit(1, batch.groups[:1])
        with pytest.raises(StepConflictError, match="other groups"):
            await training.report(wrong)


async def test_the_learner_api_refuses_strangers_and_nonsense(tmp_path: Path) -> None:
    job = Job(tmp_path)
    async with job.coordinator() as (_, learner, _), aiohttp.ClientSession() as http:
        url = learner._url
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            async with http.get(f"{url}/v1/batch?step=1", headers=headers) as answer:
                assert answer.status == 401
        good = {"Authorization": f"Bearer {TO_COORDINATOR}"}
        async with http.get(f"{url}/v1/batch", headers=good) as answer:
            assert answer.status == 400
        async with http.post(f"{url}/v1/steps", data="{}", headers=good) as answer:
            assert (answer.status, (await answer.json())["reason"]) == (400, "BadRequest")
        async with http.get(f"{url}/v1/batch?step=1", headers=good) as answer:
            assert answer.status == 409, "the learner must announce its weights first"
        for path in ("/healthz", "/readyz", "/metrics"):
            async with http.get(url + path) as answer:
                assert answer.status == 200


async def test_a_stale_batch_ends_the_coordinator_with_an_explanation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(batch: Batch, max_staleness: int, went_back: int) -> None:
        raise JobError("StaleBatch", "too old")

    monkeypatch.setattr(batches_module, "check_staleness", stale)
    job = Job(tmp_path)
    async with job.coordinator() as (training, learner, running):
        await learner.run(steps=0)
        with pytest.raises(JobError, match="too old"):
            await training.wait_for_batch(1, 10)
        with pytest.raises(ExceptionGroup) as ended:
            await running
    assert ended.group_contains(JobError, match="too old")


def test_a_stale_batch_is_never_handed_out() -> None:
    fresh = Batch(step=3, epoch=0, groups=[a_group("t0-000000", [0.0, 1.0], step=1)])
    check_staleness(fresh, max_staleness=1)
    with pytest.raises(JobError, match="is a fault of Headway"):
        check_staleness(fresh, max_staleness=0)


def test_steps_without_groups_age_no_group() -> None:
    assert [as_of(step, [4, 5, 8]) for step in (3, 4, 5, 8)] == [6, 6, 6, 8]
    batch = Batch(step=6, epoch=0, groups=[a_group("t0-000000", [0.0, 1.0], step=3)], idle=[4, 5])
    check_staleness(batch, max_staleness=0)
    with pytest.raises(JobError, match="is a fault of Headway"):
        check_staleness(batch.model_copy(update={"idle": [4]}), max_staleness=0)


def test_groups_from_before_a_rollback_are_never_handed_out() -> None:
    batch = Batch(step=6, epoch=0, groups=[a_group("t0-000000", [0.0, 1.0], step=4)], idle=[5])
    check_staleness(batch, max_staleness=3, went_back=4)
    with pytest.raises(JobError, match="is a fault of Headway"):
        check_staleness(batch, max_staleness=3, went_back=5)


@pytest.mark.parametrize(("rows", "steps"), [(5, 4), (1, 2), (0, 0)])
def test_a_batch_is_never_smaller_than_its_size(rows: int, steps: int) -> None:
    sampler = BatchScheduler(batch_size=2, max_staleness=1, steps=4, positions=4 * rows)
    assert sampler.total == steps


async def test_a_stall_names_its_blocker(tmp_path: Path) -> None:
    job = Job(tmp_path)
    quiet = PoolState(ready=0, starting=1, leased=2)
    broken = quiet.model_copy(update={"problem": Problem(reason="ImagePullBackOff", message="no such image")})
    async with job.coordinator() as (training, learner, _):
        router = Router()
        assert "learner" in blocker(training, router, quiet, 600.0).words
        report: StepReport = learner.commit(0, [])
        await training.report(report)
        router.wanted = version(0)
        assert "rollout servers" in blocker(training, router, quiet, 600.0).words
        endpoint = Endpoint("http://a", "http://a:1")
        router.discovered([endpoint])
        router.holds(endpoint, version(0))
        job_waits = blocker(training, router, broken, 600.0).words
        assert "no such image" in job_waits or "learner" in job_waits
        async with asyncio.timeout(10):
            while not training.batch_ready:
                await asyncio.sleep(0.01)
        found = blocker(training, router, quiet, 600.0)
        assert "batch of step 1 is ready" in found.words
        assert found.patience == LEARNER_SECONDS


async def test_slow_work_is_a_stall_only_after_its_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stall, "CHECK_SECONDS", 0.01)
    job = Job(tmp_path)
    job.pause = lambda task: 60.0
    router = Router(wanted=version(0))
    endpoint = Endpoint("http://a", "http://a:1")
    router.discovered([endpoint])
    router.holds(endpoint, version(0))
    pool = PoolState(ready=0, starting=0, leased=3)

    async def asked() -> PoolState:
        return pool

    async with job.coordinator() as (training, learner, _):
        await training.report(learner.commit(0, []))
        while not training.state.in_flight["validation"]:
            await asyncio.sleep(0.001)
        watch = training_watch(training, router, asked, lambda: None, episode_seconds=600.0)

        async def stalled_after(idle: float) -> str | None:
            training.state.moved_at = time.monotonic() - idle
            watching = asyncio.create_task(watch.run())
            await asyncio.sleep(0.05)
            watching.cancel()
            return watch.stalled

        assert await stalled_after(AFTER_SECONDS + 300.0) is None, "an episode may take 600 s"
        assert "none has ended" in (await stalled_after(AFTER_SECONDS + 601.0) or "")
        pool = pool.model_copy(update={"leased": 0})
        assert "none has ended" in (await stalled_after(AFTER_SECONDS + 1.0) or ""), (
            "no episode has a sandbox"
        )
        training.state.moved()
        assert await stalled_after(0.0) is None


async def test_step_taken_during_a_weight_load_is_not_overlooked(tmp_path: Path) -> None:
    """Two steps follow quickly, and the second is due for validation.

    The barrier must not wait without end.
    """
    job = Job(tmp_path)
    async with job.coordinator() as (training, learner, running):
        loading = asyncio.Event()

        async def slow() -> None:
            if training.state.step == 1:
                await loading.wait()

        job.rotation.ready = slow  # type: ignore[method-assign]
        playing = asyncio.create_task(learner.run())
        while training.state.step < 2:
            await asyncio.sleep(0.001)
        loading.set()
        await asyncio.gather(playing, running)
    assert sorted(training.state.evaluations) == [0, 2, 4]


async def test_a_lost_segment_of_a_trained_group_is_counted_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(tmp_path)
    async with job.coordinator() as (_, learner, _):
        await learner.run(steps=2)
        key = learner.batches[0].groups[0].group_id
    segment = job.layout.usage_of_group(key)
    before = job.store.get(segment)
    job.store.delete([segment])
    with caplog.at_level("WARNING"):
        async with job.coordinator():
            pass
    assert "segment-lost" in caplog.text
    assert job.store.get(segment) == before


def test_a_trained_group_without_its_file_reads_as_none(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert Spool(job.store, job.layout).taken("t0-000000") is None
