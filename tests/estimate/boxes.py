"""Sandboxes in this process: the product's session around an environment, behind the routes of a pod.

Two parts are not the product's. There is no pod and no isolation, and the broker grants every lease. Some
sandboxes break off during an episode, as if their node were lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from aiohttp import web

from headway_api.document import Json
from headway_api.seeds import seed
from headway_sandbox.environment import Environment
from headway_sandbox.session import Session


class Box(Protocol):
    """The sandbox that answers for one lease."""

    def reset(self, body: Json) -> Json: ...
    def call(self, body: Json) -> Json: ...
    def finish(self, body: Json) -> Json: ...


class Boxes:
    """All sandboxes of a job, and their broker."""

    def __init__(self, make: Callable[[str], Box], lost: float) -> None:
        """Args:
        make: lease -> its sandbox.
        lost: share of leases whose sandbox breaks off at the first tool call.
        """
        self._make, self._lost = make, lost
        self._boxes: dict[str, Box] = {}
        self.url = ""
        self.broken = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/leases", self._lease)
        app.router.add_delete("/v1/leases/{lease}", self._release)
        app.router.add_post("/v1/owners", self._owner)
        app.router.add_get("/v1/pool", self._pool)
        for name in ("reset", "tool", "finish"):
            app.router.add_post(f"/boxes/{{lease}}/{name}", self._asked)
        return app

    async def _lease(self, request: web.Request) -> web.Response:
        lease = (await request.json())["lease"]
        self._boxes[lease] = self._make(lease)
        url = f"{self.url}/boxes/{lease}"
        answer = {"lease": lease, "pod": f"box-{lease}", "url": url, "token": "t", "waited_seconds": 0.0}
        return web.json_response(answer)

    async def _release(self, request: web.Request) -> web.Response:
        self._boxes.pop(request.match_info["lease"], None)
        return web.Response(status=204)

    async def _owner(self, request: web.Request) -> web.Response:
        return web.Response(status=204)

    async def _pool(self, request: web.Request) -> web.Response:
        answer = {"ready": 1, "starting": 0, "leased": len(self._boxes), "problem": None}
        return web.json_response(answer)

    async def _asked(self, request: web.Request) -> web.Response:
        lease, name = request.match_info["lease"], request.path.rpartition("/")[2]
        body = await request.json()
        if name == "tool" and self._breaks(lease):
            self.broken += 1
            assert request.transport is not None
            request.transport.abort()
            raise ConnectionResetError
        box = self._boxes[lease]
        return web.json_response({"reset": box.reset, "tool": box.call, "finish": box.finish}[name](body))

    def _breaks(self, lease: str) -> bool:
        return seed(0, "broken", lease) < self._lost * 2**31


def of_environment(make: Callable[[str], Environment]) -> Callable[[str], Box]:
    """Sandboxes that hold a real environment."""
    return lambda lease: Session(lambda: make(lease))


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    """Serve an app in this process, and yield its URL."""
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
