"""Runs a whole job without Kubernetes: coordinator, gateway, vLLM, sandboxes, agent, and a scripted
learner."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from ports import free_port
from role_keys import KEYS, TO_BROKER, TO_COORDINATOR
from rollout_server import job_config
from scripted_learner import ScriptedLearner

from bench.support.agent import AT_ONCE, Latency, agent_service
from bench.support.engine import LORA, Server
from bench.support.sandboxes import ENTRYPOINT, warm_pool
from headway_api.artifacts import Layout
from headway_api.config import JobConfig
from headway_api.records import Batch, Finished, GroupRecord, WeightsManifest
from headway_api.store import FileStore
from headway_coordinator.agents.choice import GatewayAddresses
from headway_coordinator.bounds import oldest_step
from headway_coordinator.coordinator import Coordinator

READY_SECONDS = 60
RUN_SECONDS = 900
"""Maximum seconds of a job, after which the benchmark gives up."""
_runs = itertools.count()


@dataclass(frozen=True)
class Plan:
    """The settings of a run."""

    steps: int
    batch_size: int
    group_size: int
    turns: int
    tokens: int
    """Number of tokens sampled in a turn."""
    latency: Latency = AT_ONCE
    train_seconds: float = 0.0
    """Seconds that the learner takes for a step."""
    lag: int = 0
    sampler: str = "in_order"
    concurrency: int = 256
    validated_rows: int = 0
    """Number of held-out rows; 0 for no validation."""
    validate_every: int = 0
    """Steps between two validations."""
    beside: bool = True
    """Whether training continues during a validation."""
    full: bool = False
    """Whether every weight is trained; otherwise an adapter is trained."""

    @property
    def episodes(self) -> int:
        return self.steps * self.batch_size * self.group_size


@dataclass
class Ran:
    """The result of a job."""

    seconds: float
    """Seconds from the first announcement of weights to the last step."""
    waited: float
    """Seconds within this time in which the learner had no batch."""
    batches: list[Batch]
    usage: dict[str, Any]
    peak_sandboxes: int
    whole_seconds: float = 0.0
    """Seconds from the first announcement of weights to the job's end, with its last validation."""

    @property
    def groups(self) -> list[GroupRecord]:
        return [group for batch in self.batches for group in batch.groups]

    @property
    def episode_seconds(self) -> list[float]:
        """Seconds of each trained episode, from its sandbox's lease to its scoring."""
        return [e.finished_at - e.started_at for group in self.groups for e in group.episodes]

    @property
    def lags(self) -> list[int]:
        """Staleness of the oldest token of each trained group, in steps."""
        found = [(batch.step - 1, oldest_step(group)) for batch in self.batches for group in batch.groups]
        return [step - oldest for step, oldest in found if oldest is not None]


class Pausing(JobConfig):
    """A job whose training waits for each validation, as with full weights."""

    @property
    def validates_beside(self) -> bool:
        return False


class TimedLearner(ScriptedLearner):
    """A scripted learner that takes a fixed time for each batch."""

    def __init__(self, *arguments: Any, seconds: float) -> None:
        super().__init__(*arguments)
        self._seconds = seconds
        self.waited = 0.0
        self.last = 0.0

    async def take(self, http: aiohttp.ClientSession, step: int) -> Batch | Finished:
        """Fetch a batch, and return it once its training time is over."""
        asked = time.monotonic()
        found = await super().take(http, step)
        if isinstance(found, Batch):
            self.waited += time.monotonic() - asked
            await asyncio.sleep(self._seconds)
        return found

    async def announce(self, http: aiohttp.ClientSession, report: Any) -> None:
        await super().announce(http, report)
        self.last = time.monotonic()


async def run(folder: Path, server: Server, plan: Plan, held_out: Server | None = None) -> Ran:
    """Run one job from the first weights to the last step. `held_out` is the server for its validations, if
    any."""
    number = next(_runs)
    folder = folder / f"job-{number}"
    folder.mkdir(parents=True)
    sizes = {"train": plan.steps * plan.batch_size, "validation": plan.validated_rows}
    for split, size in sizes.items():
        rows = [{"prompt": f"Handle {split} case {i:06d}."} for i in range(size)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    async with AsyncExitStack() as stack:
        sandboxes = await stack.enter_async_context(warm_pool(TO_BROKER, size=16))
        agent = await stack.enter_async_context(agent_service(plan.turns, plan.latency))
        evaluated = validation(plan, folder, dedicated=held_out is not None)
        config = job_config(folder, server.base, **spec(plan, agent), **evaluated)
        config = config.model_copy(update={"uid": f"run-{number}"})
        if not plan.beside:
            config = Pausing.model_validate(config.model_dump())
        statuses: list[dict[str, Any]] = []
        port, gateway = free_port(), free_port()
        store, base = FileStore(), f"http://127.0.0.1:{gateway}"

        coordinator = Coordinator(
            config,
            KEYS,
            store,
            folder / "cache",
            statuses.append,
            broker_url=sandboxes.url,
            discover=server.discover,
            discover_validation=held_out.discover if held_out else None,
            port=port,
            gateway_port=gateway,
            at=GatewayAddresses(base, base),
        )

        def publish(step: int) -> WeightsManifest:
            # Use the run's number as incarnation, so that no prefix cached by another run is used.
            return server.weights(step, incarnation=number)

        layout = Layout(config.spec.output.uri, config.namespace, config.name, config.uid)
        url = f"http://127.0.0.1:{port}"
        learner = TimedLearner(url, TO_COORDINATOR, store, layout, publish, seconds=plan.train_seconds)
        running = asyncio.create_task(coordinator.run())
        await _ready(url, running)
        started = time.monotonic()
        async with asyncio.timeout(RUN_SECONDS):
            await asyncio.gather(learner.run(), running)
        return Ran(
            whole_seconds=time.monotonic() - started,
            seconds=learner.last - started,
            waited=learner.waited,
            batches=learner.batches,
            usage=statuses[-1]["usage"],
            peak_sandboxes=sandboxes.peak,
        )


def spec(plan: Plan, agent_url: str) -> dict[str, Any]:
    """The fields of the job's spec, without validation."""
    return {
        "environment": {"image": "none", "entrypoint": ENTRYPOINT},
        "model": {"contextLength": 4096} | ({"full": {}} if plan.full else {"lora": LORA}),
        "algorithm": {
            "batchSize": plan.batch_size,
            "groupSize": plan.group_size,
            "maxStepsOffPolicy": plan.lag,
            "sampler": plan.sampler,
        },
        "schedule": {"maxSteps": plan.steps, "maxEpochs": 1},
        "rollout": {"sampling": {"maxTokens": plan.tokens}, "maxConcurrency": plan.concurrency},
        "agent": {"http": {"url": agent_url, "reportsReward": False}},
        "preflight": {"policy": "Off"},
    }


def validation(plan: Plan, folder: Path, *, dedicated: bool = False) -> dict[str, Any]:
    """The fields of the spec for held-out rows; empty without such rows."""
    if not plan.validated_rows:
        return {}
    uris = {split: f"file://{folder}/{split}.jsonl" for split in ("train", "validation")}
    how = {"everySteps": plan.validate_every, "atStart": True}
    return {
        "data": {split: {"uri": uri} for split, uri in uris.items()},
        "evaluation": how | {"servers": "Dedicated" if dedicated else "Shared"},
    }


async def _ready(url: str, running: asyncio.Task[None]) -> None:
    async with asyncio.timeout(READY_SECONDS), aiohttp.ClientSession() as http:
        while True:
            if running.done():
                running.result()
            try:
                async with http.get(f"{url}/readyz") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.05)
