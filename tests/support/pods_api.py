"""A fake API server with pods only, over plain HTTP: it lists, watches, creates and deletes them.

Each pod "runs" at the next loopback address, where a test runs a server on the sandbox's port.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from headway_api import names


@dataclass
class PodsApi:
    """The pods, and the addresses that are left for new ones."""

    addresses: list[str]
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    """Addresses of pods that were deleted, in order."""
    first: bytes = b""
    """Bytes that the first watch gets, once."""
    version: int = 1
    watches: list[asyncio.Queue[dict[str, Any]]] = field(default_factory=list)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/{namespace}/pods", self._list)
        app.router.add_post("/api/v1/namespaces/{namespace}/pods", self._create)
        app.router.add_delete("/api/v1/namespaces/{namespace}/pods/{name}", self._delete)
        return app

    def add(self, pod: dict[str, Any]) -> dict[str, Any]:
        """Add a pod. It runs at the next address, or stays pending if none is left."""
        self.version += 1
        meta = pod["metadata"]
        meta |= {"uid": f"uid-of-{meta['name']}", "resourceVersion": str(self.version)}
        pod["status"] = {"phase": "Pending"}
        if self.addresses:
            pod["status"] = {"phase": "Running", "podIP": self.addresses.pop(0)}
        self.pods[meta["name"]] = pod
        self._tell("ADDED", pod)
        return pod

    def end(self, name: str, code: int, words: str) -> None:
        """End a pod's container with this exit code and message."""
        pod = self.pods[name]
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        state = {"terminated": {"exitCode": code, "message": words}}
        pod["status"] = {"phase": "Failed", "containerStatuses": [{"name": names.SANDBOX, "state": state}]}
        self._tell("MODIFIED", pod)

    def _tell(self, kind: str, pod: dict[str, Any]) -> None:
        for queue in self.watches:
            queue.put_nowait({"type": kind, "object": pod})

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response(
                {"items": list(self.pods.values()), "metadata": {"resourceVersion": str(self.version)}}
            )
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.watches.append(queue)
        odd, self.first = self.first, b""
        if odd:
            await response.write(odd)
        while True:
            await response.write(json.dumps(await queue.get()).encode() + b"\n")

    async def _create(self, request: web.Request) -> web.Response:
        return web.json_response(self.add(await request.json()), status=201)

    async def _delete(self, request: web.Request) -> web.Response:
        pod = self.pods.pop(request.match_info["name"], None)
        if pod is None:
            return web.json_response({"code": 404, "reason": "NotFound", "message": "gone"}, status=404)
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        self.deleted.append(pod["status"].get("podIP", ""))
        self._tell("DELETED", pod)
        return web.json_response(pod)


@asynccontextmanager
async def served(app: web.Application, host: str, port: int) -> AsyncIterator[str]:
    """Serve an application at an address of this machine."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    try:
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def answering(answers: dict[tuple[str, str], Any]) -> web.Application:
    """A sandbox with these answers by (method, path): arguments of a response, or a handler."""

    async def handle(request: web.Request) -> web.StreamResponse:
        answer = answers.get((request.method, request.path), {"status": 404})
        if callable(answer):
            found: web.StreamResponse = await answer(request)
            return found
        return web.Response(**answer)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    return app


SANDBOX_PORT = names.PORT_SANDBOX
