"""A set of rollout servers, from before its pods exist until it is released: a fleet for each candidate.

Each candidate has a weight slot of its own on the same servers, so all of them are sampled at the same time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import aiohttp

from headway_api.records import WeightsManifest
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.backends import of_servers
from headway_coordinator.engines.concurrency import Concurrency
from headway_coordinator.engines.discovery import Discover
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.evaluation.candidates import Readable, field_of
from headway_coordinator.faults import CandidateFault
from headway_coordinator.gateway.turns import Backend, TurnLimiter

LOOK_SECONDS: Final = 0.5
REFUSED_SECONDS: Final = 60.0
"""If every server refuses a candidate's weights for this long, the candidate cannot be served."""


@dataclass(frozen=True)
class Served:
    """One candidate on its servers."""

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
        for one in [*found.values()][:1]:  # they share the servers, so one look shows how full they are
            running.append(tasks.create_task(Concurrency(http, key, one.fleet.router, limiter).run()))
        try:
            yield found
        finally:
            for task in running:
                task.cancel()


async def proven(name: str, fleet: Fleet, is_wanted: Callable[[], bool]) -> None:
    """Return once a server holds the candidate's verified weights, or the candidate is no longer wanted.

    If no server comes, the operator decides, because it sees the pods.

    Raises:
        CandidateFault: there are servers, and each of them refuses the weights.
    """
    refused_at: float | None = None
    while is_wanted() and not fleet.router.in_rotation():
        failures = [server.failure for server in fleet.router.servers.values()]
        if not failures or None in failures:
            refused_at = None
        elif refused_at is None:
            refused_at = time.monotonic()
        elif time.monotonic() - refused_at > REFUSED_SECONDS:
            failure = failures[0]
            assert failure is not None
            text = f"the rollout servers refuse the candidate's weights: {failure.message}"
            raise CandidateFault(str(failure.reason), text, field_of(name, "checkpoint"))
        await asyncio.sleep(LOOK_SECONDS)
