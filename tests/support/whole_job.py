"""One job with a `/metrics` for each of its parts: coordinator, broker, servers, operator.

These parts are real:

- the coordinator with its whole loop,
- the broker with its pool and leases,
- the operator's planner and telemetry over a cache that holds the job, and
- the port of the rollout servers for scrapers.

These parts are simulated: the model's words and the optimizer's metrics (`a_course`), Kubernetes' API of pods
(`played_pods`), and weight agents. vLLM's own metrics are a recording of a real vLLM (`recorded_vllm`).

The job runs in its own thread, and so does the code that answers for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from faulty_servers import Fault, Scripted, serving, weights_slot
from job_rig import publishing
from observed_fleet import Fleet
from played_course import Course
from played_pods import PlayedPods, sandboxes
from ports import free_port
from recorded_vllm import Replay
from role_keys import KEYS, LEASES, TO_BROKER, TO_COORDINATOR
from scripted_job import job as speaking
from scripted_job import speaking_engine, until_ready
from scripted_learner import ScriptedLearner

from headway_api.config import JobConfig
from headway_api.document import Json
from headway_api.prices import DatedPrices, PriceBook, Prices
from headway_api.records import GroupRecord, StepReport
from headway_api.remedies import applied
from headway_api.store import FileStore
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.engines.router import Endpoint
from headway_rollout import metrics_port
from headway_rollout.engine import Engine
from headway_sandbox.broker import pods, pool
from headway_sandbox.broker.leases import Leases
from headway_sandbox.broker.metrics import Metrics
from headway_sandbox.broker.service import Service
from headway_sandbox.broker.warm import WarmPool

NAMESPACE, JOB = "team", "refunds"
SERVERS = 2
LOST_EVERY_SECONDS = 4.0
"""Seconds from one loss of a sandbox's node to the next."""
BOOK = PriceBook(
    name="test",
    entries=[
        DatedPrices(
            since=datetime(2020, 1, 1, tzinfo=UTC).date(),
            prices=Prices(
                prefill="2",
                cached_prefill="0",
                sample="8",
                train="6",
                evaluation_prefill="0",
                evaluation_cached_prefill="0",
                evaluation_sample="8",
                sandbox_seconds="0.001",
            ),
        )
    ],
)


@dataclass
class Shown:
    """Where to scrape each part while the job runs."""

    fleet: Fleet
    course: Course
    coordinator: str = ""
    broker: str = ""
    servers: list[str] = field(default_factory=list)
    evaluation: str = ""
    operator: str = ""


def configured(folder: Path, steps: int) -> JobConfig:
    """Return the job as its coordinator and its broker read it."""
    fields: Json = {
        "algorithm": {"batchSize": 4, "groupSize": 4},
        "schedule": {"maxSteps": steps, "maxEpochs": 1000},
        "rollout": {
            "sampling": {"maxTokens": 64},
            "timeoutSeconds": 20,
            "maxConcurrency": 24,
            "maxRetries": 2,
        },
        "evaluation": {"everySteps": 5, "passK": [1, 2], "groupSize": 2, "sampling": {"temperature": 1}},
        "budget": {"usd": "1000000", "tokens": {"sample": 10**12}},
        "collapse": {
            "policy": "Remediate",
            "signals": ["GradientSpiking"],
            "remedies": ["LowerLearningRate"],
            "maxRemedies": 1,
        },
    }
    made = speaking(folder, **fields)
    for name, many in (("train", 24), ("validation", 8)):
        rows = [{"prompt": f"{name} {n}", "task": "odd" if n % 2 else "even"} for n in range(many)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    content = made.model_dump(mode="json", by_alias=True, exclude_none=True)
    for block in ("train", "validation"):
        content["spec"]["data"][block]["taskColumn"] = "task"
    return JobConfig.model_validate(content | {"name": JOB, "namespace": NAMESPACE})


def resting(mean_seconds: float, rng: random.Random) -> Fault:
    """Return a fault that delays each answer by an exponentially distributed time."""

    async def rest(request: web.Request) -> None:
        await asyncio.sleep(rng.expovariate(1 / mean_seconds))

    return rest


@asynccontextmanager
async def broker(config: JobConfig, api: PlayedPods) -> AsyncIterator[str]:
    """Run the real broker while the block lasts; yield its URL."""
    metrics, kind = Metrics(config), pods.SandboxKind(config)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        limits = pool.Limits(minimum=4, maximum=config.max_episodes, starting_at_once=16)
        warm = WarmPool(api, http, kind, pods.Platform({}, {}, []), limits, metrics)  # type: ignore[arg-type]
        leases = Leases(warm, http, LEASES, metrics)
        app = Service(warm, leases, metrics, TO_BROKER).app()
        async with listening(app) as url:
            work = [asyncio.create_task(warm.run()), asyncio.create_task(leases.run()), losing(api)]
            try:
                yield url
            finally:
                for task in work:
                    task.cancel()
                await asyncio.gather(*work, return_exceptions=True)


def losing(api: PlayedPods) -> asyncio.Task[None]:
    """Start a task that now and then loses a sandbox with an episode in it."""

    async def lose() -> None:
        while True:
            await asyncio.sleep(LOST_EVERY_SECONDS)
            if api.leases:
                api.lose(next(iter(api.leases)))

    return asyncio.create_task(lose())


@asynccontextmanager
async def listening(app: web.Application, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """Serve `app` from this process; yield its URL."""
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, 0).start()
    try:
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def weight_agent(rng: random.Random) -> Scripted:
    """Return an agent that takes weights after a delay, but reports a wrong digest for the first."""
    made = Scripted({**weights_slot("?slot=validation"), **weights_slot()})
    take, refused = made.answers["POST /v1/weights"], [True]

    def taken(manifest: Any) -> Any:
        if refused:
            refused.clear()
            return {
                "version": None,
                "ready": False,
                "error": "another digest",
                "reason": "VerificationFailed",
            }
        return take(manifest) | {"error": None, "reason": None, "canary_error": abs(rng.gauss(0, 2e-5))}

    made.answers = {**made.answers, "POST /v1/weights": taken}
    made.faults["POST /v1/weights"] = resting(0.1, rng)
    return made


class PacedLearner(ScriptedLearner):
    """A learner whose steps take time. The last step waits until the test allows it."""

    pace = 0.6
    last = 0
    may_end: asyncio.Event

    async def announce(self, http: aiohttp.ClientSession, report: StepReport) -> None:
        await asyncio.sleep(self.pace if report.step else 0)
        if report.step == self.last:
            await self.may_end.wait()
        await super().announce(http, report)


async def _live(
    folder: Path, steps: int, pace: float, shown: Shown, ready: threading.Event, over: asyncio.Event
) -> None:
    """Run the whole job, until `over` or its end."""
    rng, config, store, port = random.Random(3), configured(folder, steps), FileStore(), free_port()
    api = PlayedPods(rng)
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(sandboxes(api, shown.course.environment))
        pods.url_of = address
        broker_url = await stack.enter_async_context(broker(config, api))
        endpoints = [await _server(stack, folder, shown, rng) for _ in range(SERVERS)]

        async def discover() -> set[Endpoint]:
            return {*endpoints}

        coordinator = Coordinator(
            config,
            KEYS,
            store,
            folder / "cache",
            shown.fleet.coordinator_says,
            broker_url=broker_url,
            discover=discover,
            port=port,
            book=BOOK,
        )
        running = asyncio.create_task(coordinator.run())
        await until_ready(running, port)
        learner = PacedLearner(
            f"http://127.0.0.1:{port}",
            TO_COORDINATOR,
            store,
            coordinator.layout,
            publishing(store, coordinator.layout),
        )

        def metrics(step: int, groups: list[GroupRecord]) -> dict[str, float]:
            optimizer = applied(config.spec, learner.in_force).optimizer
            shown.course.learning_rate = optimizer.learning_rate
            return shown.course.metrics(step, groups)

        learner.metrics, learner.pace, learner.last, learner.may_end = metrics, pace, steps, over
        training = asyncio.create_task(learner.run())
        shown.coordinator, shown.broker = f"127.0.0.1:{port}", broker_url.removeprefix("http://")
        ready.set()
        ending = asyncio.create_task(over.wait())
        await asyncio.wait({running, training, ending}, return_when=asyncio.FIRST_COMPLETED)
        for task in (running, training, ending):
            task.cancel()
        ended = await asyncio.gather(running, training, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error


async def _server(stack: AsyncExitStack, folder: Path, shown: Shown, rng: random.Random) -> Endpoint:
    """Serve a rollout server. It is scripted, except for its metrics and the port for scrapers."""
    made, replay = speaking_engine(folder, shown.course.says), Replay()

    async def metrics(request: web.Request) -> web.StreamResponse:
        return web.Response(text=replay.text())

    made.faults = {"GET /metrics": metrics, "POST /inference/v1/generate": resting(0.05, rng)}
    engine = await stack.enter_async_context(serving(made))
    agent = await stack.enter_async_context(serving(weight_agent(rng)))
    http = await stack.enter_async_context(aiohttp.ClientSession())
    app = metrics_port.application(functools.partial(Engine, http, engine.url))
    url = await stack.enter_async_context(listening(app, f"127.0.0.{len(shown.servers) + 1}"))
    shown.servers.append(url.removeprefix("http://"))
    return Endpoint(engine.url, agent.url)


@contextmanager
def whole_job(folder: Path, *, steps: int, pace: float) -> Iterator[Shown]:
    """Run a job in another thread while the block lasts; its last step waits for the end of the block."""
    shown = Shown(Fleet(NAMESPACE, JOB, steps), Course())
    ready, failure = threading.Event(), list[BaseException]()
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    def live() -> None:
        try:
            loop.run_until_complete(_live(folder, steps, pace, shown, ready, over))
        except BaseException as error:  # handed to the thread that waits for the job
            failure.append(error)
        finally:
            ready.set()

    address_of = pods.url_of
    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    try:
        assert ready.wait(60), "the job is not up"
        if not failure:
            yield shown
    finally:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(over.set)
        thread.join(30)
        pods.url_of = address_of
    if failure:
        raise failure[0]
