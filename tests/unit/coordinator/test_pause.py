"""A signal pauses a job once. Nothing is trained until a person ends the pause, even if a process dies."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from faulty_servers import Scripted, broker, sandbox, serving, weight_agent
from job_rig import Job, publishing, spec
from ports import free_port
from raised import over_from, signal, verdict
from role_keys import KEYS, TO_COORDINATOR
from scripted_job import job as scripted_job
from scripted_job import speaking_engine, until_ready
from scripted_learner import ScriptedLearner

from headway_analysis.signals.of_spec import job_of
from headway_analysis.signals.watch import Verdict, Watch
from headway_api.config import JobConfig
from headway_api.sandbox_api import PoolState
from headway_api.signals import ACTED_ON, SignalName
from headway_api.spec.trust import CollapseSpec
from headway_api.status import Pause, RLTrainingJobStatus
from headway_api.store import FileStore
from headway_coordinator import status as status_module
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.engines.router import Endpoint, Router
from headway_coordinator.pause import Pauses, acting, pause_of, unseen
from headway_coordinator.stall import AFTER_SECONDS, blocker
from headway_coordinator.stored_job import KubernetesJob

COLLAPSED, NOTHING, FLAT, DIVERGED = (
    SignalName.REWARD_COLLAPSED,
    SignalName.NOTHING_TO_TRAIN,
    SignalName.REWARD_FLAT,
    SignalName.VALIDATION_DIVERGED,
)
PAUSE = CollapseSpec(policy="Pause")
IDENTITY = JobConfig(name="refunds", namespace="team", uid="uid", spec=spec())
NOW = datetime(2026, 11, 1, 13, 0, 5, 999, tzinfo=UTC)


def paused_for(*found: Verdict, step: int = 12) -> Pause:
    return pause_of(IDENTITY, step, found, found, NOW)


def names(found: list[Verdict]) -> list[SignalName]:
    return [each.signal.name for each in found]


class TestWhatPauses:
    """The pure decision which signals pause the job."""

    @pytest.mark.parametrize("policy", ["Alert", "Remediate"])
    def test_other_policies_act_on_no_signal(self, policy: str) -> None:
        collapse = CollapseSpec().model_copy(update={"policy": policy})
        assert acting(collapse, [verdict(NOTHING)]) == []

    def test_only_the_signals_that_the_job_names_pause_it(self) -> None:
        raised = [verdict(COLLAPSED), verdict(FLAT)]
        assert names(acting(PAUSE, raised)) == [COLLAPSED]
        assert names(acting(PAUSE.model_copy(update={"signals": (FLAT,)}), raised)) == [FLAT]

    @pytest.mark.parametrize("name", SignalName)
    def test_the_default_signals_pause_and_no_others(self, name: SignalName) -> None:
        assert bool(acting(PAUSE, [verdict(name)])) == (name in ACTED_ON)

    def test_a_signal_pauses_the_first_time(self) -> None:
        assert names(unseen([verdict(NOTHING, since=1)], None)) == [NOTHING]

    def test_a_signal_raised_since_the_last_pause_does_not_pause(self) -> None:
        last = paused_for(verdict(NOTHING, since=10), step=12)
        assert unseen([verdict(NOTHING, since=10)], last) == []
        assert unseen([verdict(NOTHING, since=12)], last) == []

    def test_a_signal_that_is_raised_again_pauses(self) -> None:
        last = paused_for(verdict(NOTHING, since=10), step=12)
        assert names(unseen([verdict(NOTHING, since=13)], last)) == [NOTHING]

    def test_another_signal_pauses_even_for_an_earlier_step(self) -> None:
        """A validation of step 10 may end after step 14 was taken, and raise its signal at step 10."""
        last = paused_for(verdict(NOTHING), step=12)
        assert names(unseen([verdict(NOTHING), verdict(DIVERGED, since=10)], last)) == [DIVERGED]


def test_a_pause_says_why_what_to_change_and_how_to_go_on() -> None:
    found = pause_of(IDENTITY, 12, [verdict(DIVERGED)], [verdict(NOTHING), verdict(DIVERGED)], NOW)
    assert (found.signal, found.signals) == ("ValidationDiverged", ["NothingToTrain", "ValidationDiverged"])
    assert (found.step, found.time) == (12, NOW.replace(microsecond=0))
    assert found.message == "0 of 4 groups had an advantage in 3 batches. First: give the desk easier cases."
    assert found.resume == (
        "kubectl annotate rltj refunds -n team headway.dev/resume=2026-11-01T13:00:05Z --overwrite"
    )
    assert found.as_object()["time"] == "2026-11-01T13:00:05Z", "the very word of the annotation"


class TestPauses:
    """The pauses that a coordinator keeps track of."""

    def new(self, pause: Pause | None = None, resumed: datetime | None = None, step: int = 12) -> Pauses:
        status = RLTrainingJobStatus(pause=pause, resumed_pause=resumed)
        made = Pauses(IDENTITY, PAUSE, status)
        made.begin(step)
        return made

    def test_the_pause_holds_even_if_the_signal_clears(self) -> None:
        pauses = self.new()
        pauses.look(11, [], done=False)
        assert not pauses.is_paused
        pauses.look(12, [verdict(NOTHING, since=12)], done=False)
        assert pauses.is_paused
        assert pauses.last is not None
        assert (pauses.last.signal, pauses.last.step) == ("NothingToTrain", 12)
        pauses.look(13, [], done=False)
        assert pauses.is_paused

    def test_a_job_without_a_step_left_is_not_stopped(self) -> None:
        """Such a job only needs its last validation and its final test."""
        pauses = self.new()
        pauses.look(20, [verdict(NOTHING, since=20)], done=True)
        assert (pauses.is_paused, pauses.last) == (False, None)

    def test_a_successor_keeps_the_pause_until_it_ends(self) -> None:
        """The coordinator may restart without a person's order, for example while the operator is down."""
        before = paused_for(verdict(NOTHING))
        assert self.new(before).is_paused
        assert self.new(before, before.time - timedelta(days=1)).is_paused, "that was another pause"
        assert not self.new(before, before.time).is_paused

    def test_a_signal_that_has_paused_does_not_pause_again(self) -> None:
        before = paused_for(verdict(NOTHING, since=12))
        pauses = self.new(before, before.time)
        pauses.look(12, [verdict(NOTHING, since=12)], done=False)
        pauses.look(30, [verdict(NOTHING, since=12)], done=False)
        assert (pauses.is_paused, pauses.last) == (False, before)
        pauses.look(31, [verdict(NOTHING, since=31)], done=False)
        assert pauses.is_paused
        assert pauses.last is not None
        assert (pauses.last.step, pauses.last.time > before.time) == (31, True)

    def test_the_next_pause_includes_signals_already_raised(self) -> None:
        """Otherwise the signal that was already raised would pause the job a third time."""
        before = paused_for(verdict(NOTHING, since=10))
        pauses = self.new(before, before.time)
        raised = [verdict(COLLAPSED, since=20), verdict(NOTHING, since=10)]
        pauses.look(20, raised, done=False)
        assert pauses.last is not None
        assert pauses.last.signals == ["RewardCollapsed", "NothingToTrain"]
        third = self.new(pauses.last, pauses.last.time, step=20)
        third.look(21, raised, done=False)
        assert not third.is_paused

    def test_a_signal_raised_in_a_pause_belongs_to_it(self) -> None:
        pauses = self.new()
        pauses.look(12, [verdict(NOTHING, since=12)], done=False)
        first = pauses.last
        assert first is not None
        pauses.look(12, [verdict(NOTHING, since=12), verdict(DIVERGED, since=10)], done=False)
        assert pauses.last is not None
        assert pauses.last.signals == ["NothingToTrain", "ValidationDiverged"]
        assert (pauses.last.time, pauses.last.signal) == (first.time, first.signal)

    def test_a_job_that_went_back_before_its_pause_pauses_again(self) -> None:
        """After a rollback, the same step may raise the signal again.

        The earlier annotation must not end the new pause.
        """
        before = paused_for(verdict(NOTHING, since=12))
        pauses = self.new(before, before.time, step=8)
        pauses.look(9, [], done=False)
        assert not pauses.is_paused
        pauses.look(12, [verdict(NOTHING, since=12)], done=False)
        assert pauses.is_paused
        assert pauses.last is not None
        assert pauses.last.time != before.time


async def test_a_paused_job_neither_trains_nor_begins_groups(tmp_path: Path) -> None:
    job = Job(tmp_path)
    async with job.coordinator() as (training, learner, _):
        job.paused = lambda: training.state.step >= 1
        await learner.run(steps=1)
        async with asyncio.timeout(10):
            while training.state.in_flight.total() or training.scheduler.step < 1:
                await asyncio.sleep(0.01)
        begun = len(job.tasks)
        assert await training.wait_for_batch(2, 0.2) is None
        assert not training.batch_ready
        assert len(job.tasks) == begun
        assert training.scheduler.free > 0, "there was a slot for another group"
        assert training.state.finished is None
        pool = PoolState(ready=4, leased=0, starting=0)
        assert blocker(training, Router(), pool, 60.0).words.startswith("operator: the job is paused")
        assert blocker(training, Router(), pool, 60.0).patience == AFTER_SECONDS
    job.paused = lambda: False
    async with job.coordinator() as (training, learner, running):
        await asyncio.gather(learner.run(), running)
    assert training.state.finished == "MaxSteps"
    assert [batch.step for batch in learner.batches] == [2, 3, 4]


async def test_no_batch_is_given_between_a_step_and_its_signals(tmp_path: Path) -> None:
    """A learner may ask for the next batch while servers are still loading the new weights."""
    plain = spec()
    unvalidated = plain.evaluation.model_copy(update={"every_steps": 0, "at_start": False})
    job = Job(tmp_path, plain.model_copy(update={"evaluation": unvalidated}))
    judged = asyncio.Event()
    async with job.coordinator() as (training, learner, _):
        await learner.run(steps=1)
        async with asyncio.timeout(10):
            while training.scheduler.batch() is None:
                await asyncio.sleep(0.01)

        def judge() -> None:
            if training.state.step == 2:
                judged.set()

        want, wanted = job.rotation.want, asyncio.Event()

        async def slowly(*given: Any) -> None:
            wanted.set()
            await asyncio.Event().wait()
            await want(*given)

        job.rotation.want = slowly  # type: ignore[method-assign]
        job.on_change, job.paused = judge, judged.is_set
        found = await training.batch(2)
        report = learner.commit(2, found.groups)  # type: ignore[union-attr]
        reporting = asyncio.create_task(training.report(report))
        async with asyncio.timeout(10):
            await wanted.wait()
            while training.scheduler.batch() is None:
                await asyncio.sleep(0.01)
        assert training.state.step == 2
        assert await training.batch(3) is None
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)


RAISED_AT, STEPS = 2, 4


class Rig:
    """A job that pauses, run by several real coordinators in turn. They share the status that each writes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, FileStore()
        fields = {
            "collapse": {"policy": "Pause"},
            "schedule": {"maxSteps": STEPS, "maxEpochs": 4},
            "evaluation": {"everySteps": 0, "atStart": False},
        }
        self.config = scripted_job(folder, **fields)
        self.previous = RLTrainingJobStatus()
        self.written: list[dict[str, Any]] = []

    async def run(self, stack: AsyncExitStack) -> tuple[Coordinator, ScriptedLearner, asyncio.Task[None]]:
        engine = await stack.enter_async_context(serving(speaking_engine(self.folder)))
        agent: Scripted = await stack.enter_async_context(serving(weight_agent()))
        box = await stack.enter_async_context(serving(sandbox()))
        leases = await stack.enter_async_context(serving(broker(box.url)))

        async def discover() -> set[Endpoint]:
            return {Endpoint(engine.url, agent.url)}

        port = free_port()
        coordinator = Coordinator(
            self.config,
            KEYS,
            self.store,
            self.folder / "cache",
            self.written.append,
            previous=self.previous,
            broker_url=leases.url,
            discover=discover,
            port=port,
        )
        raising = signal(NOTHING, over_from(RAISED_AT))
        coordinator._outlets.signals._watch = Watch(job_of(self.config.spec), [raising])
        publish = publishing(self.store, coordinator.layout)
        learner = ScriptedLearner(
            f"http://127.0.0.1:{port}", TO_COORDINATOR, self.store, coordinator.layout, publish
        )
        running = asyncio.create_task(coordinator.run())

        async def stop() -> None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        stack.push_async_callback(stop)
        await until_ready(running, port)
        return coordinator, learner, running

    async def until_paused(self) -> Pause:
        """Run a coordinator until it hands out no more batches. Returns the pause of its last status."""
        async with AsyncExitStack() as stack, asyncio.timeout(60):
            coordinator, learner, running = await self.run(stack)
            at = learner.resume().step
            await learner.run(steps=max(0, RAISED_AT - at))
            async with aiohttp.ClientSession() as http:
                await learner.announce(http, learner.resume())
                url = f"{learner._url}/v1/batch?step={RAISED_AT + 1}&wait=0.3"
                async with http.get(url, headers=learner._headers) as answer:
                    assert answer.status == 204
            assert not running.done()
            await coordinator._status.flush()
        found = RLTrainingJobStatus.model_validate(self.written[-1])
        assert found.pause is not None
        assert "resumedPause" not in self.written[-1], "the operator's"
        return found.pause


async def test_job_pauses_at_the_raising_step_until_a_person_ends_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    first = await rig.until_paused()
    assert (first.signal, first.step) == ("NothingToTrain", RAISED_AT)
    assert first.message == "step 2 of 2 is over. First: give the desk easier cases."

    unwritten = await rig.until_paused()
    assert (unwritten.signal, unwritten.step) == (first.signal, first.step)

    rig.previous = RLTrainingJobStatus(pause=first)
    assert await rig.until_paused() == first, "nobody has ended it"

    ahead = first.model_copy(update={"step": STEPS})
    rig.previous = RLTrainingJobStatus(pause=ahead, resumed_pause=first.time)
    assert (await rig.until_paused()).step == RAISED_AT, "it went back to before the pause"

    rig.previous = RLTrainingJobStatus(pause=first, resumed_pause=first.time)
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        _, learner, running = await rig.run(stack)
        await asyncio.gather(learner.run(), running)
    assert learner.finished is not None
    assert [batch.step for batch in learner.batches] == [3, 4]
    last = RLTrainingJobStatus.model_validate(rig.written[-1])
    assert last.pause == first, "the signal is raised as it was, and was seen"
    assert "resumedPause" not in rig.written[-1]


def test_a_successor_learns_of_the_pause_and_of_its_end() -> None:
    pause = paused_for(verdict(NOTHING))
    stored = RLTrainingJobStatus(pause=pause, resumed_pause=pause.time).as_object()

    class Api:
        def patch_namespaced_custom_object_status(self, *given: Any, **named: Any) -> dict[str, Any]:
            return {"status": stored}

    status = status_module.previous_status(KubernetesJob(IDENTITY, Api()))
    assert (status.pause, status.resumed_pause) == (pause, pause.time)
