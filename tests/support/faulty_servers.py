"""Servers that fail on purpose: a sandbox, a broker and a rollout server whose answers a test scripts.

They exist to inject faults. Without a fault, they do just enough for an episode to end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Fault = Callable[[web.Request], Awaitable[web.StreamResponse | None]]
"""Returns an answer that replaces the plain one, or None for the plain one. It may also break the connection,
or never return."""


async def drop(request: web.Request) -> web.StreamResponse | None:
    """Break the connection, as a killed process would."""
    assert request.transport is not None
    request.transport.abort()
    raise ConnectionResetError


async def hang(request: web.Request) -> web.StreamResponse | None:
    """Never answer."""
    await asyncio.Event().wait()
    return None


def fail(status: int, reason: str = "Broken", *, permanent: bool = False) -> Fault:
    """Answer with a Problem."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = {"reason": reason, "message": f"{reason} on purpose", "field": None, "permanent": permanent}
        return web.json_response(body, status=status)

    return answer


def say(body: object) -> Fault:
    """Answer with `body` and status 200."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(body)

    return answer


def after(times: int, fault: Fault) -> Fault:
    """No fault for the first `times` requests, then `fault`."""
    seen = 0

    async def answer(request: web.Request) -> web.StreamResponse | None:
        nonlocal seen
        seen += 1
        return await fault(request) if seen > times else None

    return answer


def keyed(key: str) -> Fault:
    """Refuse requests without `key`, as the middleware in front of vLLM does."""

    async def answer(request: web.Request) -> web.StreamResponse | None:
        if request.headers.get("Authorization") == f"Bearer {key}":
            return None
        return web.json_response({"reason": "Unauthorized", "message": "no key"}, status=401)

    return answer


def first(times: int, fault: Fault) -> Fault:
    """`fault` for the first `times` requests, then none."""
    seen = 0

    async def answer(request: web.Request) -> web.StreamResponse | None:
        nonlocal seen
        seen += 1
        return await fault(request) if seen <= times else None

    return answer


@dataclass
class Scripted:
    """A server with a plain answer for each route, and faults that replace them."""

    answers: Mapping[str, Callable[[Any], Any]]
    """`METHOD /path` or `METHOD /path?query` -> body -> JSON answer (None is 204)."""
    faults: dict[str, Fault] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        key = f"{request.method} {request.path}"
        body = await request.json() if request.can_read_body else None
        self.asked.append((key, body))
        fault = self.faults.get(key)
        if fault is not None and (answer := await fault(request)) is not None:
            return answer
        found = self.answers.get(f"{request.method} {request.path_qs}") or next(
            (call for route, call in self.answers.items() if key.startswith(route)), None
        )
        if found is None:
            return web.json_response({"reason": "NotFound", "message": key}, status=404)
        content = found(body)
        return web.Response(status=204) if content is None else web.json_response(content)

    def count(self, key: str) -> int:
        """Number of requests to a route."""
        return sum(asked.startswith(key) for asked, _ in self.asked)


@asynccontextmanager
async def serving(scripted: Scripted) -> AsyncIterator[Scripted]:
    """Run the server on a free port."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", scripted.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    scripted.url = f"http://127.0.0.1:{port}"
    try:
        yield scripted
    finally:
        await runner.cleanup()


def sandbox(reward: float = 1.0, score: float = 1.0) -> Scripted:
    """A sandbox whose tool says `gold`."""
    first_messages = [{"role": "user", "content": "Look up brave-otter."}]
    return Scripted(
        {
            "POST /reset": lambda body: {"messages": first_messages, "tools": []},
            "POST /tool": lambda body: {"content": "gold", "done": False},
            "POST /finish": lambda body: {"reward": reward, "score": score, "metrics": {}},
        }
    )


def broker(sandbox_url: str) -> Scripted:
    """A broker that leases the same sandbox to everyone."""
    return Scripted(
        {
            "POST /v1/leases": lambda body: {
                "lease": body["lease"],
                "pod": "pod-0",
                "url": sandbox_url,
                "token": "t",
                "waited_seconds": 0.0,
            },
            "DELETE /v1/leases": lambda body: None,
            "POST /v1/owners": lambda body: None,
            "GET /v1/pool": lambda body: {"ready": 1, "starting": 0, "leased": 0, "problem": None},
        }
    )


def engine(tokens: list[int], logprob: float = -0.5) -> Scripted:
    """A vLLM that always samples `tokens`."""
    content = [{"token_id": token, "logprob": logprob} for token in tokens]
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "token_ids": tokens,
        "logprobs": {"content": content},
        "weight_versions": [{"version": "default", "start": 0, "end": len(tokens)}],
    }
    usage = {"prompt_tokens_details": {"cached_tokens": 2}}
    return Scripted({"POST /inference/v1/generate": lambda body: {"choices": [choice], "usage": usage}})


def weight_agent() -> Scripted:
    """A weight agent that loads any weights at once."""
    return Scripted({**weights_slot("?slot=validation"), **weights_slot()})


def weights_slot(query: str = "") -> dict[str, Callable[[Any], Any]]:
    """Routes of one slot of a weight agent."""
    held: dict[str, Any] = {"version": None, "ready": False}

    def take(manifest: Any) -> Any:
        held.update(version=manifest["version"], ready=True)
        return held

    def release(body: Any) -> None:
        held.update(version=None, ready=False)

    route = f"/v1/weights{query}"
    return {f"GET {route}": lambda body: held, f"POST {route}": take, f"DELETE {route}": release}
