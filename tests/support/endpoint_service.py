"""An OpenAI-compatible service whose answers a test scripts. It refuses messages in a wrong order."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from headway_api.spec.candidate import CandidateEndpoint
from headway_coordinator.endpoint.chat import EndpointChat
from headway_coordinator.endpoint.owner import OfCandidate

Answer = Callable[[web.Request, Any], Awaitable[web.StreamResponse]]
TOKEN = "sk-a/secret+token"
MODEL = "frontier-1"


def says(content: str | None = "It is gold.", *calls: Any, finish: str | None = None, **other: Any) -> Answer:
    """Answer with a chat completion; `calls` are (name, arguments as text)."""
    wanted = [
        {"id": f"their-{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": content} | ({"tool_calls": wanted} if wanted else {}) | other
    reason = finish or ("tool_calls" if wanted else "stop")
    usage = {
        "prompt_tokens": 20,
        "completion_tokens": 5,
        "total_tokens": 25,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    return gives({"choices": [{"index": 0, "message": message, "finish_reason": reason}], "usage": usage})


def gives(body: object, status: int = 200, **headers: str) -> Answer:
    """Answer with any JSON."""

    async def answer(request: web.Request, asked: Any) -> web.StreamResponse:
        return web.json_response(
            body, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )

    return answer


def listing(*names: str) -> Answer:
    """Answer with a list of models."""
    return gives({"object": "list", "data": [{"id": name} for name in names]})


def fails(
    status: int, message: str = "on purpose", *, headers: dict[str, str] | None = None, **error: Any
) -> Answer:
    """Answer with an error in OpenAI's form."""

    async def answer(request: web.Request, asked: Any) -> web.StreamResponse:
        body = {"error": {"message": message, "type": "an_error", "param": None, "code": None} | error}
        return web.json_response(body, status=status, headers=headers)

    return answer


def raw(content: bytes, kind: str = "application/json", status: int = 200, **headers: str) -> Answer:
    """Answer with any bytes."""

    async def answer(request: web.Request, asked: Any) -> web.StreamResponse:
        named = {"Content-Type": kind} | {k.replace("_", "-"): v for k, v in headers.items()}
        return web.Response(body=content, status=status, headers=named)

    return answer


async def cut_short(request: web.Request, asked: Any) -> web.StreamResponse:
    """Send the headers and half of the content, then close the connection."""
    response = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"choices": [{"index": 0, "message": {"role": "assi')
    assert request.transport is not None
    request.transport.close()
    return response


async def dropped(request: web.Request, asked: Any) -> web.StreamResponse:
    """Break the connection before any answer."""
    assert request.transport is not None
    request.transport.abort()
    raise ConnectionResetError


async def silent(request: web.Request, asked: Any) -> web.StreamResponse:
    """Never answer."""
    await asyncio.Event().wait()
    raise AssertionError


@dataclass
class Service:
    """Gives its answers in order, and repeats the last one."""

    answers: list[Answer]
    models: Answer = field(default_factory=lambda: fails(404, "not served"))
    bodies: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    """When each request arrived, on the monotonic clock."""
    running: int = 0
    peak: int = 0
    """Maximum number of requests that ran at the same time."""
    url: str = ""

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.at.append(time.monotonic())
        self.tokens.append(request.headers.get("Authorization"))
        body = await request.json()
        self.bodies.append(body)
        if (wrong := _out_of_order(body["messages"])) is not None:
            return web.json_response({"error": {"message": wrong, "param": "messages"}}, status=400)
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            return await answer(request, body)
        finally:
            self.running -= 1

    async def list_models(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers.get("Authorization"))
        return await self.models(request, None)


def _out_of_order(messages: list[dict[str, Any]]) -> str | None:
    """Why OpenAI would refuse messages: a tool's answer without its call, or a call without an answer."""
    open_calls: set[str] = set()
    for at, message in enumerate(messages):
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return f"messages.{at}: a tool message must follow the call that it answers"
            open_calls.discard(message["tool_call_id"])
            continue
        if open_calls:
            return f"messages.{at}: calls {sorted(open_calls)} have no answer"
        open_calls = {call["id"] for call in message.get("tool_calls") or []}
        for call in message.get("tool_calls") or []:
            json.loads(call["function"]["arguments"])
    return None


@asynccontextmanager
async def serving(*answers: Answer, models: Answer | None = None) -> AsyncIterator[Service]:
    """Serve the answers on a free port."""
    service = Service(list(answers) or [says()])
    service.models = models or service.models
    app = web.Application()
    app.router.add_post("/v1/chat/completions", service.chat)
    app.router.add_get("/v1/models", service.list_models)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield service
    finally:
        await runner.cleanup()


@asynccontextmanager
async def asking(
    url: str,
    *,
    timeout: float = 20.0,
    patience: float = 60.0,
    token: str | None = TOKEN,
    answered: bool = False,
    **spec: Any,
) -> AsyncIterator[EndpointChat]:
    """The client for a candidate `other` whose endpoint is at `url`."""
    wanted = {"url": url, "model": MODEL, "secretRef": {"name": "keys"}} | spec
    endpoint = CandidateEndpoint.model_validate(wanted)
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
        yield EndpointChat(
            http, OfCandidate("other"), endpoint, token, timeout=timeout, patience=patience, answered=answered
        )
