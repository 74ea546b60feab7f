"""A set of rollout servers, from before its pods exist until it is released: a fleet for each candidate.

Each candidate has a weight slot of its own on the same servers, so all of them are sampled at the same time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import aiohttp

from headway_api.conditions import Reason
from headway_api.records import WeightsManifest
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.backends import of_servers
from headway_coordinator.engines.concurrency import Concurrency
from headway_coordinator.engines.discovery import Discover
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.engines.router import Failure
from headway_coordinator.evaluation.candidates import Readable
from headway_coordinator.faults import CandidateError
from headway_coordinator.gateway.turns import Backend, TurnLimiter

LOOK_SECONDS: Final = 0.5
REFUSED_SECONDS: Final = 60.0
"""If every server finds for this long that weights are wrong, the candidate cannot be served."""


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


async def proven(
    field: str, fleet: Fleet, is_wanted: Callable[[], bool], patience: Callable[[], float]
) -> None:
    """Return once a server holds the candidate's verified weights, or the candidate is no longer wanted.

    If no server comes, the operator decides, because it sees the pods.

    Args:
        field: names the candidate's model.
        fleet: the candidate's.
        is_wanted: whether it is still to be measured.
        patience: for how many seconds servers may fail to load, as while the artifact store is away.

    Raises:
        CandidateError: there are servers, and none of them can have the weights.
    """
    failed_at: float | None = None
    while is_wanted() and not fleet.router.in_rotation():
        failures = [server.failure for server in fleet.router.servers.values()]
        known = [failure for failure in failures if failure is not None]
        if not known or len(known) < len(failures):
            failed_at = None
        else:
            failed_at = time.monotonic() if failed_at is None else failed_at
            if (fault := refusal(field, known, time.monotonic() - failed_at, patience())) is not None:
                raise fault
        await asyncio.sleep(LOOK_SECONDS)


def refusal(
    field: str, failures: Sequence[Failure], seconds: float, patience: float
) -> CandidateError | None:
    """Why a candidate's servers are given up, if they are.

    Args:
        field: see `proven`.
        failures: one of each server.
        seconds: how long every server has had one.
        patience: for how many seconds they may fail to load the weights.
    """
    wrong = [failure for failure in failures if failure.reason is Reason.VERIFICATION_FAILED]
    if len(wrong) == len(failures) and seconds > REFUSED_SECONDS:
        text = f"the rollout servers refuse the candidate's weights: {wrong[0].message}"
        fix = "restore the base model with which they were trained, or name a model that fits them"
        return CandidateError(str(wrong[0].reason), f"{text}; {fix}", field)
    if seconds <= patience:
        return None
    text = f"no rollout server could load the candidate's weights for {patience:.0f} s: {failures[0].message}"
    fix = "correct that, or raise spec.pendingDeadlineSeconds if it passes by itself"
    return CandidateError(str(failures[0].reason), f"{text}; {fix}", field)
