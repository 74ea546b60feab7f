"""Manages a set of rollout servers, from before its pods exist until it is released.

Each candidate has a weight slot of its own on the same servers, and a fleet of its own that loads it. So all
candidates are sampled at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from headway_api.records import WeightsManifest
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.backends import of_servers
from headway_coordinator.engines.concurrency import Concurrency
from headway_coordinator.engines.discovery import Discover
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.evaluation.candidates import Readable
from headway_coordinator.gateway.turns import Backend, TurnLimiter


@dataclass(frozen=True)
class Served:
    """The fleet and the backend of one candidate with rollout servers."""

    fleet: Fleet
    backend: Backend


@asynccontextmanager
async def served(
    http: aiohttp.ClientSession,
    key: str,
    discover: Discover,
    candidates: Mapping[str, tuple[Readable, WeightsManifest]],
    limiter: AdaptiveSemaphore,
    timeout_seconds: float,
) -> AsyncIterator[dict[str, Served]]:
    """Keep the slots of `candidates` on the servers that `discover` finds, until the block ends."""
    found: dict[str, Served] = {}
    async with asyncio.TaskGroup() as tasks:
        running = []
        for name, (model, manifest) in candidates.items():
            fleet = Fleet(http, key, discover, slot=name)
            await fleet.want(manifest)
            running.append(tasks.create_task(fleet.run()))
            places = TurnLimiter(limiter.follower())
            backend = of_servers(model.renderer, fleet, model.context_length, timeout_seconds, places)
            found[name] = Served(fleet, backend)
        for one in [*found.values()][:1]:  # all candidates share the servers, so one fleet shows the load
            running.append(tasks.create_task(Concurrency(http, key, one.fleet.router, limiter).run()))
        try:
            yield found
        finally:
            for task in running:
                task.cancel()
