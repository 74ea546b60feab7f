"""An agent as a service with MTRL's protocol: it alternates turns through the gateway with work in the
sandbox."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web


@dataclass(frozen=True)
class Latency:
    """Log-normal seconds of a tool call, with the same mean for any sigma."""

    mean: float
    sigma: float

    def draw(self, episode: str, call: int) -> float:
        """Seconds of a call. They are the same for this call of this episode in every run and attempt."""
        if self.mean == 0:
            return 0.0
        drawn = random.Random(f"{episode.rpartition('-')[0]}/{call}")
        return drawn.lognormvariate(math.log(self.mean) - self.sigma**2 / 2, self.sigma)


AT_ONCE = Latency(mean=0.0, sigma=0.0)


class Agent:
    """Accepts prompts, and plays their episodes with only the data in the request."""

    def __init__(self, http: aiohttp.ClientSession, turns: int, latency: Latency) -> None:
        self._http = http
        self._turns = turns
        self._latency = latency
        self._running: set[asyncio.Task[None]] = set()

    async def take(self, request: web.Request) -> web.Response:
        """Accept a prompt, and start its episode. The answer only confirms the receipt."""
        task = asyncio.create_task(self._episode(await request.json()))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return web.json_response({})

    async def _episode(self, document: dict[str, Any]) -> None:
        about = document["metadata"]
        base, name = about["endpoint"], about["trajectory_id"]
        messages = [{"role": "user", "content": document["prompt"]}]
        tools = (await self._ask("GET", f"{base}/v1/tools"))["tools"]
        for turn in range(self._turns):
            body = {"model": "default", "messages": messages, "tools": tools}
            answer = await self._ask("POST", f"{base}/v1/chat/completions", body)
            messages.append(answer["choices"][0]["message"])
            if turn + 1 < self._turns:
                seconds = self._latency.draw(name, turn)
                reply = await self._ask("POST", f"{base}/v1/tools/work", {"seconds": seconds})
                result = {"role": "tool", "tool_call_id": f"call-{turn}-0", "content": reply["content"]}
                messages.append(result)
        await self._ask("POST", f"{base}/complete-rollout", {"Status": "ready"})

    async def _ask(self, method: str, url: str, body: Any = None) -> Any:
        async with self._http.request(method, url, json=body) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()


@asynccontextmanager
async def agent_service(turns: int, latency: Latency) -> AsyncIterator[str]:
    """Run an agent during the block, and yield its address."""
    limit = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limit) as http:
        app = web.Application()
        app.router.add_post("/", Agent(http, turns, latency).take)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
        finally:
            await runner.cleanup()
