"""How many episodes run at once: as many as the servers' KV caches hold, never more than the spec allows.

A server whose cache is full takes requests out of it (a preemption) and computes their tokens again later:
all the work of a turn, twice. So the limit moves as TCP moves its window, by what vLLM says of itself:

    a server preempted, or its cache is nearly full       the limit falls to 3/4 of the places in use
    somebody waits for a place, and all caches have room  the limit rises by one a server

Nothing moves while more places are held than the limit allows: the last cut has not shown its effect, since
no episode is ended for it. The limit begins at its ceiling. A ramp would cost every start minutes, and would
learn nothing: an empty cache has room for all the episodes that begin, and fills only as their conversations
grow. What a ceiling that is too high costs is some tokens computed twice, until the first cut.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

import aiohttp

from headway_api import bounds, engine_metrics, logs
from headway_api.bounds import OutOfBounds
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.engines.router import Reading, Router, Server
from headway_wire.contents import content

LOOK_SECONDS = 2.0
"""Between two looks at the servers."""
ANSWER_SECONDS = 2.0
"""Longest a server may take to say how it is; one that takes longer is left out of that look."""
MOST_BYTES: Final = 16 * bounds.MIB
"""Of all that a server counts: a hundred times what vLLM says at its start."""

FULL: Final = 0.9
"""KV-cache use from which a few more tokens of each request make a server preempt."""
ROOMY: Final = 0.8
"""KV-cache use up to which a server takes another episode."""
CUT: Final = 0.75

KV_USE: Final = "vllm:kv_cache_usage_perc"
PREEMPTIONS: Final = "vllm:num_preemptions_total"
WAITING: Final = "vllm:num_requests_waiting"

_log = logging.getLogger(__name__)


class Look(NamedTuple):
    """What one server said, at the last look and at this one."""

    before: Reading | None
    now: Reading

    @property
    def preempted(self) -> float:
        """Requests preempted in between; 0 where nobody knows.

        To take full weights a server preempts all it runs, and a server that starts again counts from 0:
        neither says that its cache is too small.
        """
        if self.before is None or self.before.version != self.now.version:
            return 0.0
        return max(0.0, self.now.preemptions - self.before.preemptions)

    @property
    def full(self) -> bool:
        return self.preempted > 0 or self.now.kv_use >= FULL

    @property
    def roomy(self) -> bool:
        """Another request would run at once."""
        return self.now.kv_use <= ROOMY and self.now.waiting == 0


def adapt(limit: int, ceiling: int, most: int, wanted: bool, looks: Sequence[Look]) -> int:
    """The limit from now on, between one episode a server and `ceiling`.

    Args:
        limit: as it is.
        ceiling: spec.rollout.maxConcurrency.
        most: places held at once since the last look, at most.
        wanted: whether anybody had to wait for one.
        looks: at the servers that answered; without any the limit stays.
    """
    if not looks:
        return limit
    floor = min(len(looks), ceiling)
    if most > limit:
        return max(floor, limit)
    if any(look.full for look in looks):
        return max(floor, int(CUT * most))
    if wanted and all(look.roomy for look in looks):
        return max(floor, min(ceiling, limit + len(looks)))
    return max(floor, limit)


def read(text: str) -> tuple[float, float, float] | None:
    """KV-cache use (the fullest engine's), preemptions and waiting requests of vLLM's `/metrics`.

    None where one of them is missing or is no number.
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
        """Of `router`'s servers; `key`: what their ports ask for."""
        self._http = http
        self._headers = {"Authorization": f"Bearer {key}"}
        self._router = router
        self._limiter = limiter

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Ask every server in rotation how full it is, and decide."""
        servers = self._router.in_rotation()
        found = await asyncio.gather(*map(self._read, servers))
        heard = list(zip(servers, found, strict=True))
        looks = [Look(server.reading, now) for server, now in heard if now is not None]
        for server in self._router.servers.values():
            server.reading = None
        for server, now in heard:
            server.reading = now
        self._router.preemptions += round(sum(look.preempted for look in looks))
        limiter, (most, wanted) = self._limiter, self._limiter.demand()
        limit = adapt(limiter.limit, limiter.ceiling, most, wanted, looks)
        if limit < limiter.limit:
            logs.event(
                _log,
                "concurrency-cut",
                limit=limit,
                was=limiter.limit,
                kv_use=max(look.now.kv_use for look in looks),
                preempted=sum(look.preempted for look in looks),
            )
        limiter.limit = limit

    async def _read(self, server: Server) -> Reading | None:
        """How full a server is; None where it does not say, or is taking new weights."""
        version, url = server.version, f"{server.endpoint.engine}/metrics"
        try:
            limit = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
            asked = self._http.get(url, headers=self._headers, timeout=limit, allow_redirects=False)
            async with asked as answer:
                answer.raise_for_status()
                found = read((await content(answer, MOST_BYTES)).decode())
        except (aiohttp.ClientError, TimeoutError, UnicodeDecodeError, OutOfBounds):
            return None
        if found is None or version is None or not version == server.version == self._router.wanted:
            return None
        return Reading(version, *found)
