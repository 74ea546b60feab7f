"""The gateway in a process of its own, which measures its event loop and its memory.

It says its address as JSON on its first line. Once its standard input ends, it says its figures, and ends.
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

from headway_coordinator.gateway.asks import Sampling, Session
from headway_coordinator.gateway.rollouts import Status

STEP_SECONDS = 0.005
CONTEXT = 4000


def anew(served: list[Rig], seen: Counter[int]) -> Any:
    """Has each request find an episode at its beginning, and counts the answers."""

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
    """How much longer than it should each short sleep lasts: so long the loop was kept.

    No longer than this process worked meanwhile: what other processes on the machine take is not its doing.
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
    async with rig(tok, context=CONTEXT, around=anew(served, seen)) as r:
        served.append(r)
        r.rollout.expires_at = float("inf")
        await r.chat()  # what is loaded at the first turn is no request's cost
        print(json.dumps({"url": r.base}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        # What was sent until now made the process warm.
        seen.clear()
        before, found = fresh(), list[float]()
        watching = asyncio.create_task(pauses(found))
        cpu = time.process_time()
        print("{}", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        watching.cancel()
        figures = {
            "longest_pause_seconds": max(found),
            "pauses_above_50_ms": sum(pause > 0.05 for pause in found),
            "peak_bytes": peak() - before,
            "cpu_seconds": time.process_time() - cpu,
            "statuses": dict(sorted(seen.items())),
            "faults": len(r.rollout.faults),
        }
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    asyncio.run(serve())
