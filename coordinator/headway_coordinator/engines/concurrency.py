"""How many episodes run at once: as many as the servers' KV caches hold, never more than the spec allows.

A server with a full cache takes requests out of it (a preemption) and computes their tokens again later. That
doubles the work of a turn. So the limit moves as TCP moves its window, by the metrics of vLLM:

    a server preempted, or its cache is nearly full       the limit falls to 3/4 of the places in use
    a caller waits for a place, and all caches have room  the limit rises by one a server

The limit stays while more places are held than it allows. No episode ends because of a cut, so the last cut
has not shown its effect yet. The limit begins at its ceiling. A ramp would cost every start minutes and would
learn nothing. An empty cache has room for all the episodes that begin, and fills only as their conversations
grow. If the ceiling is too high, some tokens are computed twice, until the first cut.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

import aiohttp

from headway_api import bounds, engine_metrics, logs
from headway_api.bounds import OutOfBoundsError
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.engines.router import Reading, Router, Server
from headway_wire.contents import content

LOOK_SECONDS = 2.0
"""Seconds between two looks at the servers."""
ANSWER_SECONDS = 2.0
"""A server that takes longer to report its load is left out of that look."""
MAX_BYTES: Final = 16 * bounds.MIB
"""The most bytes of a server's metrics: a hundred times what vLLM reports at its start."""

FULL: Final = 0.9
"""From this KV-cache use on, a few more tokens of each request make a server preempt."""
KV_USE_LIMIT: Final = 0.8
"""Up to this KV-cache use a server takes another episode."""
CUT: Final = 0.75

KV_USE: Final = "vllm:kv_cache_usage_perc"
PREEMPTIONS: Final = "vllm:num_preemptions_total"
WAITING: Final = "vllm:num_requests_waiting"

_log = logging.getLogger(__name__)


class LoadSample(NamedTuple):
    """What one server reported at the last look and at this one."""

    before: Reading | None
    now: Reading

    @property
    def preempted(self) -> float:
        """Requests preempted between the two readings; 0 if unknown.

        A server preempts all its requests to take full weights, and a restarted server counts from 0. Neither
        means that its cache is too small.
        """
        if self.before is None or self.before.version != self.now.version:
            return 0.0
        return max(0.0, self.now.preemptions - self.before.preemptions)

    @property
    def full(self) -> bool:
        return self.preempted > 0 or self.now.kv_use >= FULL

    @property
    def has_capacity(self) -> bool:
        """Whether another request would run at once."""
        return self.now.kv_use <= KV_USE_LIMIT and self.now.waiting == 0


def adapt(limit: int, ceiling: int, peak: int, wanted: bool, samples: Sequence[LoadSample]) -> int:
    """The next limit, between one episode a server and `ceiling`.

    Args:
        limit: the current limit.
        ceiling: spec.rollout.maxConcurrency.
        peak: the most places held at once since the last look.
        wanted: whether a caller had to wait for a place.
        samples: the samples of the servers that answered. Without a sample the limit stays.
    """
    if not samples:
        return limit
    floor = min(len(samples), ceiling)
    if peak > limit:
        return max(floor, limit)
    if any(sample.full for sample in samples):
        return max(floor, int(CUT * peak))
    if wanted and all(sample.has_capacity for sample in samples):
        return max(floor, min(ceiling, limit + len(samples)))
    return max(floor, limit)


def read(text: str) -> tuple[float, float, float] | None:
    """KV-cache use, preemptions and waiting requests, from the text of vLLM's `/metrics`.

    If a server has several engines, the cache use is the fullest one's, and the others are sums. None if a
    value is missing or not a number.
    """
    found = engine_metrics.read(text, (KV_USE, PREEMPTIONS, WAITING))
    if found is None:
        return None
    return max(found[KV_USE]), sum(found[PREEMPTIONS]), sum(found[WAITING])


class Concurrency:
    """Looks at the servers in rotation every few seconds and moves the limit of `limiter`."""

    def __init__(
        self, http: aiohttp.ClientSession, key: str, router: Router, limiter: AdaptiveSemaphore
    ) -> None:
        """`router` has the servers; their ports require `key`."""
        self._http = http
        self._headers = {"Authorization": f"Bearer {key}"}
        self._router = router
        self._limiter = limiter

    async def run(self) -> None:
        """Look at intervals, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Ask every server in rotation how full it is, and move the limit."""
        servers = self._router.in_rotation()
        found = await asyncio.gather(*map(self._read, servers))
        heard = list(zip(servers, found, strict=True))
        samples = [LoadSample(server.reading, now) for server, now in heard if now is not None]
        for server in self._router.servers.values():
            server.reading = None
        for server, now in heard:
            server.reading = now
        self._router.preemptions += round(sum(sample.preempted for sample in samples))
        limiter, (peak, wanted) = self._limiter, self._limiter.demand()
        limit = adapt(limiter.limit, limiter.ceiling, peak, wanted, samples)
        if limit < limiter.limit:
            logs.event(
                _log,
                "concurrency-cut",
                limit=limit,
                was=limiter.limit,
                kv_use=max(sample.now.kv_use for sample in samples),
                preempted=sum(sample.preempted for sample in samples),
            )
        limiter.limit = limit

    async def _read(self, server: Server) -> Reading | None:
        """How full a server is. None if it does not answer, or is taking new weights."""
        version, url = server.version, f"{server.endpoint.engine}/metrics"
        try:
            limit = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
            asked = self._http.get(url, headers=self._headers, timeout=limit, allow_redirects=False)
            async with asked as answer:
                answer.raise_for_status()
                found = read((await content(answer, MAX_BYTES)).decode())
        except (aiohttp.ClientError, TimeoutError, UnicodeDecodeError, OutOfBoundsError):
            return None
        if found is None or version is None or not version == server.version == self._router.wanted:
            return None
        return Reading(version, *found)
