"""What a rollout server answers besides turns: its load, and the weights that it was asked to hold."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from headway_api.document import Json

NOTHING = {"version": None, "ready": False}


class Slots:
    """A weight agent that accepts any weights."""

    def __init__(self) -> None:
        self.held: dict[str, Json] = {}
        """Slot -> the version it holds."""

    def app(self, generate: Callable[[web.Request], Awaitable[web.Response]]) -> web.Application:
        """A server that answers turns by `generate`."""
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/inference/v1/generate", generate)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/weights", self._holds)
        app.router.add_post("/v1/weights", self._take)
        app.router.add_delete("/v1/weights", self._release)
        return app

    async def _metrics(self, request: web.Request) -> web.Response:
        names = ("kv_cache_usage_perc", "num_preemptions_total", "num_requests_waiting")
        return web.Response(text="".join(f'vllm:{name}{{engine="0"}} 0.1\n' for name in names))

    async def _holds(self, request: web.Request) -> web.Response:
        return web.json_response(self.held.get(_slot(request), NOTHING))

    async def _take(self, request: web.Request) -> web.Response:
        manifest = await request.json()
        self.held[_slot(request)] = {"version": manifest["version"], "ready": True}
        return web.json_response(self.held[_slot(request)])

    async def _release(self, request: web.Request) -> web.Response:
        self.held.pop(_slot(request), None)
        return web.Response(status=204)


def _slot(request: web.Request) -> str:
    return request.query.get("slot", "policy")
