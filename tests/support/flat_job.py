"""A job with scripted servers in which every reward is 0. Its coordinators run one after another."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from faulty_servers import Scripted, broker, sandbox, serving, weights_slot
from job_rig import publishing
from ports import free_port
from role_keys import KEYS, TO_COORDINATOR
from scripted_job import job, speaking_engine, until_ready
from scripted_learner import ScriptedLearner

from headway_api.config import JobConfig
from headway_api.status import RLTrainingJobStatus
from headway_api.store import FileStore
from headway_coordinator.coordinator import Coordinator
from headway_coordinator.engines.router import Endpoint
from headway_coordinator.status import Sink

STEPS = 5


def config(folder: Path, steps: int = STEPS, **fields: Any) -> JobConfig:
    """A job that does not validate, unless `fields` of the spec say otherwise."""
    schedule = {"maxSteps": steps, "maxEpochs": 10}
    return job(folder, **{"schedule": schedule, "evaluation": {"everySteps": 0, "atStart": False}} | fields)


async def run(
    folder: Path,
    config: JobConfig,
    previous: RLTrainingJobStatus | None,
    steps: int | None,
    sink: Sink = lambda status: None,
) -> Coordinator:
    """Run a job for `steps` steps, or to its end. Every reward is 0, so that no group has an advantage."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(serving(speaking_engine(folder)))
        agent = await stack.enter_async_context(serving(weights_agent()))
        box = await stack.enter_async_context(serving(sandbox(0.0)))
        leases = await stack.enter_async_context(serving(broker(box.url)))

        async def discover() -> set[Endpoint]:
            return {Endpoint(engine.url, agent.url)}

        store, port = FileStore(), free_port()
        coordinator = Coordinator(
            config, KEYS, store, folder / "cache", sink, previous=previous,
            broker_url=leases.url, discover=discover, port=port,
        )  # fmt: skip
        learner = ScriptedLearner(
            f"http://127.0.0.1:{port}",
            TO_COORDINATOR,
            store,
            coordinator.layout,
            publishing(store, coordinator.layout),
        )
        learner.clock = time.time
        async with asyncio.timeout(60):
            running = asyncio.create_task(coordinator.run())
            await until_ready(running, port)
            await learner.run(steps)
            if steps is None:
                await running
                return coordinator
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return coordinator


def weights_agent() -> Scripted:
    """A weight agent that loads any weights at once, and reports a passed canary."""
    held: dict[str, Any] = {"version": None, "ready": False}

    def take(body: Any) -> Any:
        held.update(version=body["version"], ready=True, error=None, reason=None, canary_error=1e-6)
        return held

    return Scripted({**weights_slot(), "GET /v1/weights": lambda body: held, "POST /v1/weights": take})
