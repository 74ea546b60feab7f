"""The coordinator's wait for a last scrape: its limit, with a simulated clock, and real requests."""

from __future__ import annotations

import asyncio
import os
import re
import selectors
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from evaluation_rig import EvalJob, spec
from faulty_servers import broker, sandbox, serving, weight_agent
from job_rig import publishing
from ports import free_port
from role_keys import KEYS, TO_COORDINATOR
from scripted_job import job as training_job
from scripted_job import speaking_engine, until_ready
from scripted_learner import ScriptedLearner

from headway_api.config import EvalConfig
from headway_api.exits import JobError
from headway_api.finishing import LAST_SCRAPE_SECONDS
from headway_api.records import EpisodeRecord
from headway_api.store import FileStore
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.engines.router import Endpoint
from headway_coordinator.episode import Task
from headway_coordinator.evaluation.job import EvalCoordinator
from headway_coordinator.lifetime import serve
from headway_coordinator.scrapes import Scrapes


class Skipping(selectors.SelectSelector):
    """A selector with a simulated clock, which jumps ahead instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is not None and timeout > 0:
            self.now += timeout
        return super().select(0)


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop that uses the simulated clock of its selector."""

    def __init__(self) -> None:
        self.clock = Skipping()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


def waited(*acts: tuple[float, str], before: tuple[str, ...] = ()) -> float:
    """Simulated seconds that the wait takes, while `acts` call methods of the scrapes at their moments."""

    async def run() -> float:
        found, loop = Scrapes(), asyncio.get_running_loop()
        for act in before:
            getattr(found, act)()
        for moment, act in acts:
            loop.call_at(moment, getattr(found, act))
        await found.last()
        return loop.time()

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        return runner.run(run())


@pytest.mark.parametrize(
    ("before", "acts", "seconds"),
    [
        (("final",), [], 0),
        (("read", "final"), [], LAST_SCRAPE_SECONDS),
        (("read", "final"), [(12, "read")], 12),
        (("read", "final", "read"), [], 0),
        (("final", "read"), [], 0),
        (("read", "final"), [(5, "leave")], 5),
        (("read", "final"), [(31, "read")], LAST_SCRAPE_SECONDS),
    ],
    ids=[
        "never scraped",
        "scraped no more",
        "scraped again",
        "scraped since",
        "scraped first then",
        "told to leave",
        "scraped too late",
    ],
)
def test_the_process_waits_for_one_more_scrape(
    before: tuple[str, ...], acts: list[tuple[float, str]], seconds: float
) -> None:
    assert waited(*acts, before=before) == pytest.approx(seconds, abs=0.01)


async def scrape(port: int) -> str:
    """The text that Prometheus would read."""
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{port}/metrics") as answer,
    ):
        return await answer.text()


class Job:
    """A whole coordinator process, whose episodes the test plays."""

    def __init__(self, folder: Path, **blocks: Any) -> None:
        self.one = EvalJob(folder, spec(output={"uri": f"file://{folder}/out"}, **blocks))
        self.port = free_port()
        self.status: list[dict[str, Any]] = []
        job = EvalConfig(name="job", namespace="ns", uid="uid", spec=self.one.spec, candidates=())
        self.process = Measuring(self, job, KEYS, self.one.store, folder, self.status.append, port=self.port)

    @property
    def has_final_status(self) -> bool:
        """Whether the final status was written."""
        return bool(self.status) and "report" in self.status[-1].get("artifacts", {})

    async def scrape(self) -> str:
        return await scrape(self.port)

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await asyncio.sleep(0.01)


class Measuring(EvalCoordinator):
    """A coordinator that skips its preflight."""

    def __init__(self, job: Job, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._of = job

    async def _work(self, stack: AsyncExitStack, http: aiohttp.ClientSession) -> None:
        one = self._of.one
        evaluation = self._evaluation = await one.coordinator()
        evaluation._on_change = self._moved
        await self._measure(stack, evaluation, [one.unit("base", "tuned", server_set=0)])


def scraped_once(job: Job) -> asyncio.Event:
    """Hold the job's episodes until the returned event is set, so that an earlier scrape shows fewer rows."""
    scraped, episode = asyncio.Event(), job.one.episode

    async def after_it(task: Task) -> EpisodeRecord:
        await scraped.wait()
        return await episode(task)

    job.one.episode = after_it  # type: ignore[method-assign]
    return scraped


def rows_in(text: str) -> dict[str, float]:
    return {name: float(rows) for name, rows in re.findall(r'eval_rows{.*candidate="(\w+)".*} (\S+)', text)}


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the wait for a scrape longer than any test."""
    monkeypatch.setattr(Scrapes.last, "__defaults__", (600.0,))


@pytest.mark.usefixtures("long")
async def test_metrics_can_be_scraped_once_more_after_the_last_status(tmp_path: Path) -> None:
    job = Job(tmp_path)
    scraped = scraped_once(job)
    async with asyncio.timeout(30):
        running = asyncio.create_task(job.process.run())
        await job.until(lambda: job.process._evaluation is not None)
        assert rows_in(await job.scrape()) == {"base": 0, "tuned": 0}
        scraped.set()
        await job.until(lambda: job.process.over)
        assert job.has_final_status, "the operator knows the results before the wait"
        await asyncio.sleep(0.1)
        assert not running.done()
        text = await job.scrape()
        await running
    assert rows_in(text) == {"base": len(job.one.rows), "tuned": len(job.one.rows)}
    assert 'measure="external_score"' in text


@pytest.mark.usefixtures("long")
@pytest.mark.parametrize("scraped", [True, False])
async def test_a_training_jobs_last_metrics_can_be_scraped_too(tmp_path: Path, scraped: bool) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(100):
        engine = await stack.enter_async_context(serving(speaking_engine(tmp_path)))
        agent = await stack.enter_async_context(serving(weight_agent()))
        box = await stack.enter_async_context(serving(sandbox()))
        leases = await stack.enter_async_context(serving(broker(box.url)))

        async def discover() -> set[Endpoint]:
            return {Endpoint(engine.url, agent.url)}

        config, store, port = training_job(tmp_path), FileStore(), free_port()
        coordinator = Coordinator(
            config,
            KEYS,
            store,
            tmp_path / "cache",
            lambda status: None,
            broker_url=leases.url,
            discover=discover,
            port=port,
        )
        url, publish = f"http://127.0.0.1:{port}", publishing(store, coordinator.layout)
        learner = ScriptedLearner(url, TO_COORDINATOR, store, coordinator.layout, publish)
        running = asyncio.create_task(coordinator.run())
        await until_ready(running, port)
        if scraped:
            await scrape(port)
        await learner.run(None)
        if scraped:
            while not coordinator.over:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert not running.done()
            assert 'headway_val_reward_mean{job_name="job",namespace="ns"}' in await scrape(port)
        await running


@pytest.mark.usefixtures("long")
async def test_a_job_that_nobody_scrapes_ends_at_once(tmp_path: Path) -> None:
    job = Job(tmp_path)
    async with asyncio.timeout(30):
        await job.process.run()
    assert job.has_final_status


@pytest.mark.usefixtures("long")
async def test_a_failed_gate_still_ends_the_job_after_a_scrape(tmp_path: Path) -> None:
    job = Job(tmp_path, gate={"candidate": "tuned", "minimum": "1", "metric": "success"})
    scraped = scraped_once(job)
    async with asyncio.timeout(30):
        running = asyncio.create_task(job.process.run())
        await job.until(lambda: job.process._evaluation is not None)
        await job.scrape()
        scraped.set()
        await job.until(lambda: job.process.over)
        await job.scrape()
        with pytest.raises(JobError) as raised:
            await running
    assert raised.value.termination.reason == "GateNotPassed"


@pytest.mark.usefixtures("long")
async def test_sigterm_ends_the_wait_and_not_the_jobs_success(tmp_path: Path) -> None:
    job = Job(tmp_path)
    scraped = scraped_once(job)
    async with asyncio.timeout(30):
        running = asyncio.create_task(serve(job.process))
        await job.until(lambda: job.process._evaluation is not None)
        await job.scrape()
        scraped.set()
        await job.until(lambda: job.process.over)
        os.kill(os.getpid(), signal.SIGTERM)
        await running
    assert job.has_final_status


@pytest.mark.usefixtures("long")
async def test_sigterm_before_the_last_status_stops_the_process(tmp_path: Path) -> None:
    job = Job(tmp_path)
    scraped_once(job)
    async with asyncio.timeout(30):
        running = asyncio.create_task(serve(job.process))
        await job.until(lambda: job.process._evaluation is not None)
        await job.scrape()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(asyncio.CancelledError):
            await running
    assert not job.has_final_status
