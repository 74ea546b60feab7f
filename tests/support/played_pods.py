"""A fake Kubernetes API of pods for the broker. Each sandbox runs a moment after its creation.

One server in this process answers for all sandboxes, each under its own path. The test scripts the answers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from headway_api.document import Json

Say = Callable[[str, Json], Any]
"""Verb and body -> the environment's answer."""


class PlayedPods:
    """The four API calls that the broker needs, without a cluster."""

    def __init__(self, rng: random.Random, start_seconds: tuple[float, float] = (0.1, 0.4)) -> None:
        self._rng = rng
        self._between = start_seconds
        self._pods: dict[str, Json] = {}
        self._watchers: set[asyncio.Queue[tuple[str, Json]]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._made = 0
        self.leases: dict[str, str] = {}
        """Name of a pod -> the lease to which it is bound."""

    async def create(self, pod: Json) -> Json:
        self._made += 1
        name = pod["metadata"]["name"]
        self._pods[name] = pod | {
            "metadata": pod["metadata"] | {"uid": f"uid-{self._made}", "resourceVersion": str(self._made)},
            "status": {"phase": "Pending"},
        }
        task = asyncio.create_task(self._run(name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return self._pods[name]

    async def delete(self, name: str, uid: str | None, grace_seconds: int) -> None:
        self.lose(name)

    async def list(self, selector: str) -> tuple[list[Json], str]:
        return [*self._pods.values()], str(self._made)

    async def watch(self, selector: str, version: str) -> AsyncIterator[tuple[str, Json]]:
        queue: asyncio.Queue[tuple[str, Json]] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)

    def lose(self, name: str) -> None:
        """Remove a pod without notice."""
        if (pod := self._pods.pop(name, None)) is not None:
            self.leases.pop(name, None)
            self._tell("DELETED", pod)

    async def _run(self, name: str) -> None:
        await asyncio.sleep(self._rng.uniform(*self._between))
        if (pod := self._pods.get(name)) is not None:
            pod["status"] = {"phase": "Running", "podIP": name}
            self._tell("MODIFIED", pod)

    def _tell(self, kind: str, pod: Json) -> None:
        for queue in self._watchers:
            queue.put_nowait((kind, pod))

    async def answer(self, request: web.Request, say: Say) -> web.Response:
        """The answer of the server in a pod."""
        name, verb = request.match_info["pod"], request.match_info["verb"]
        if name not in self._pods:
            raise web.HTTPServiceUnavailable
        if verb == "healthz":
            return web.json_response({"lease": self.leases.get(name), "deadline": None})
        body = await request.json()
        if verb == "lease":
            self.leases[name] = body["lease"]
            return web.Response(status=204)
        await asyncio.sleep(self._rng.expovariate(1 / 0.02))
        if name not in self._pods and request.transport is not None:
            request.transport.abort()
        return web.json_response(say(verb, body))


@asynccontextmanager
async def sandboxes(pods: PlayedPods, say: Say) -> AsyncIterator[Callable[[str], str]]:
    """Run the server of these pods; yields a function: name of a pod -> its base URL."""

    async def handle(request: web.Request) -> web.Response:
        return await pods.answer(request, say)

    app = web.Application()
    app.router.add_route("*", "/{pod}/{verb}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    try:
        yield lambda name: f"http://127.0.0.1:{port}/{name}"
    finally:
        await runner.cleanup()
