"""Runs the coordinator of one evaluation as a process, without a cluster.

    python -m bench.evaluation.headway_side JSON     prints the time of its episodes, as JSON

It is the coordinator's own program with two changes: the rollout server is given, and the status goes to a
file.
"""

from __future__ import annotations

import cProfile
import json
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from role_keys import KEYS

from headway_api import logs
from headway_api.config import EvalConfig
from headway_api.records import EpisodeRecord
from headway_api.store import open_store
from headway_coordinator.engines import vllm
from headway_coordinator.engines.discovery import Discover
from headway_coordinator.engines.router import Endpoint
from headway_coordinator.evaluation import job
from headway_coordinator.evaluation.run import Evaluation, Unit
from headway_coordinator.http import call
from headway_coordinator.lifetime import serve


@dataclass(frozen=True)
class Settings:
    """The settings that the coordinator would get from a cluster."""

    job: dict[str, Any]
    engine: str
    agent: str
    broker: str
    port: int
    gateway_port: int
    folder: str
    """Folder for caches and the status."""
    profile: str | None = None


class Timed(Evaluation):
    """Records when the first episode begins, and when the last group is durable and billed."""

    began: tuple[float, float] | None = None
    ended: tuple[float, float] | None = None
    in_episodes = 0.0
    """Sum of the seconds of all episodes."""
    in_calls = 0.0
    """Seconds that the episodes spent in calls to vLLM."""

    async def _counted(self, *arguments: Any) -> EpisodeRecord:
        Timed.began, started = Timed.began or now(), time.monotonic()
        try:
            return await super()._counted(*arguments)
        finally:
            Timed.in_episodes += time.monotonic() - started

    async def run(self, units: Sequence[Unit]) -> None:
        await super().run(units)
        Timed.ended = now()


async def timed_call(http: aiohttp.ClientSession, method: str, url: str, **options: Any) -> Any:
    """The coordinator's call to vLLM, with its time measured."""
    started = time.monotonic()
    try:
        return await call(http, method, url, **options)
    finally:
        Timed.in_calls += time.monotonic() - started


def now() -> tuple[float, float]:
    """The monotonic time in seconds, and the CPU seconds of this process."""
    return time.monotonic(), time.process_time()


def main() -> None:
    logs.setup()
    settings = Settings(**json.loads(sys.argv[1]))
    folder, config = Path(settings.folder), EvalConfig.model_validate(settings.job)
    job.Evaluation = Timed  # type: ignore[misc]
    vllm.call = timed_call

    def found(number: int) -> Discover:
        async def discover() -> set[Endpoint]:
            return {Endpoint(settings.engine, settings.agent)}

        return discover

    def keep(status: dict[str, Any]) -> None:
        (folder / "status.json").write_text(json.dumps(status))

    coordinator = job.EvalCoordinator(
        config,
        KEYS,
        open_store(config.spec.output),
        folder / "cache",
        keep,
        broker_url=settings.broker,
        discover=found,
        port=settings.port,
        gateway_port=settings.gateway_port,
    )
    with cProfile.Profile() if settings.profile else nullcontext() as profile:
        uvloop.run(serve(coordinator))
    if profile is not None:
        profile.dump_stats(str(settings.profile))
    assert Timed.began is not None
    assert Timed.ended is not None
    seconds, cpu = (after - before for before, after in zip(Timed.began, Timed.ended, strict=True))
    spent = {"in_episodes": Timed.in_episodes, "in_calls": Timed.in_calls}
    print(json.dumps({"seconds": seconds, "cpu": cpu} | spent), flush=True)


if __name__ == "__main__":
    main()
