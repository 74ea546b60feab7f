"""Runs the gateway in a separate process, which measures its event loop and its memory.

The first line that it prints is its address, as JSON. The first line on its standard input starts the
measurement. At the second line, it prints its numbers and ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from aiohttp import web
from memory import fresh, peak
from open_rollout import Rig, rig
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_coordinator import garbage_collection
from headway_coordinator.gateway.asks import Sampling, Session
from headway_coordinator.gateway.rollouts import Status

STEP_SECONDS = 0.005
CONTEXT = 4000


def counted(served: list[Rig], seen: Counter[int]) -> Any:
    """A middleware that gives each request a new episode, and counts the answers by status."""

    @web.middleware
    async def middleware(request: web.Request, handler: Any) -> web.StreamResponse:
        [r] = served
        r.rollout.status = Status.PENDING
        r.rollout.session = Session(r.rollout.trajectory_id, 3, Sampling(1.0, 1.0, 64))
        r.server._turns[r.rollout.trajectory_id]._by_request.clear()
        answer: web.StreamResponse = await handler(request)
        seen[answer.status] += 1
        return answer

    return middleware


async def pauses(found: list[float]) -> None:
    """Record the pauses of the event loop: how much longer than planned each short sleep lasts.

    A pause counts at most as this process's CPU time during the sleep. So other processes do not matter.
    """
    while True:
        began, worked = time.perf_counter(), time.process_time()
        await asyncio.sleep(STEP_SECONDS)
        found.append(min(time.perf_counter() - began - STEP_SECONDS, time.process_time() - worked))


async def serve() -> None:
    served: list[Rig] = []
    seen: Counter[int] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        tok = tokenizer(Path(folder), QWEN3_TEMPLATE)
    async with rig(tok, context=CONTEXT, around=counted(served, seen)) as r:
        served.append(r)
        r.rollout.expires_at = float("inf")
        await r.chat()  # the first turn imports modules, so do not measure it
        garbage_collection.exclude_loaded()  # as in a coordinator
        print(json.dumps({"url": r.base}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        # All requests until now only warmed up the process, so do not count them.
        seen.clear()
        before, found = fresh(), list[float]()
        watching = asyncio.create_task(pauses(found))
        cpu = time.process_time()
        print("{}", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        watching.cancel()
        numbers = {
            "longest_pause_seconds": max(found),
            "pauses_above_50_ms": sum(pause > 0.05 for pause in found),
            "peak_bytes": peak() - before,
            "cpu_seconds": time.process_time() - cpu,
            "statuses": dict(sorted(seen.items())),
            "faults": len(r.rollout.faults),
        }
        print(json.dumps(numbers), flush=True)


if __name__ == "__main__":
    asyncio.run(serve())
