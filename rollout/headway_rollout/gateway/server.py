"""The gateway over HTTP, for agents outside this process. Translates; decides nothing.

Under an episode's own base URL, `/e/{token}`, or with the token as Authorization: Bearer:

POST /v1/chat/completions   OpenAI's, streamed or not      GET  /v1/models
GET  /v1/tools              the environment's tools        POST /v1/tools/{name}   its arguments -> ToolReply
POST /complete-rollout      JobArn, TrajectoryId, Status: ready | failed, ClientToken?, ErrorMessage?
POST /update-reward         JobArn, TrajectoryId, Rewards: [number], Metrics?, ClientToken?

An agent may send its own Authorization with a base URL that holds the token: the path decides then. A
streamed answer begins when the turn is complete: a token counts once the weights that sampled it are proven,
and tool calls are read from whole turns. Until then comments keep the connection alive.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from headway_rollout import logs
from headway_rollout.faults import InfraFault
from headway_rollout.gateway import openai
from headway_rollout.gateway.core import CannotForce, CannotRender, Completion, ContextFull, Gateway
from headway_rollout.gateway.refusals import Refusal, bad
from headway_rollout.gateway.rollouts import Rollout, Rollouts
from headway_rollout.gateway.turns import Places, Turns

MAX_BODY = 64 * 1024 * 1024
KEEP_ALIVE_SECONDS = 10.0
"""How often a stream whose turn is not complete says so."""
JOB_ARN = "X-Amzn-SageMaker-Job-Arn"
TRAJECTORY_ID = "X-Amzn-SageMaker-Trajectory-Id"
RETRIES = "X-Stainless-Retry-Count"
"""What OpenAI's clients count their retries with."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_log = logging.getLogger(__name__)


class GatewayServer:
    """Routes over open rollouts."""

    def __init__(self, gateway: Gateway, places: Places) -> None:
        self._gateway = gateway
        self._rollouts = Rollouts()
        self._turns: dict[str, Turns] = {}
        self.places = places

    @asynccontextmanager
    async def open(self, rollout: Rollout) -> AsyncIterator[Rollout]:
        """Let an episode's agent in until the block ends."""
        turns = self._turns[rollout.trajectory_id] = Turns(self._gateway, rollout, self.places)
        with self._rollouts.open(rollout):
            try:
                yield rollout
            finally:
                rollout.close()
                del self._turns[rollout.trajectory_id]
                await turns.close()

    def renew(self, rollout: Rollout) -> bool:
        """Give an open episode another address, for a prompt that is sent again; see `Rollouts.renew`."""
        return self._rollouts.renew(rollout)

    def app(self) -> web.Application:
        """The application to serve; run it with handler_cancellation, to know of clients that leave."""
        app = web.Application(middlewares=[_answer_refusals], client_max_size=MAX_BODY)
        for base in ("", "/e/{token}"):
            app.router.add_post(f"{base}/v1/chat/completions", self._chat)
            # Agents that take the endpoint itself for the client's base URL, as the SDK's docs do.
            app.router.add_post(f"{base}/chat/completions", self._chat)
            app.router.add_get(f"{base}/v1/models", self._models)
            app.router.add_get(f"{base}/v1/tools", self._tools)
            app.router.add_post(f"{base}/v1/tools/{{name}}", self._tool)
            app.router.add_post(f"{base}/complete-rollout", self._complete)
            app.router.add_post(f"{base}/update-reward", self._reward)
        return app

    def _rollout(self, request: web.Request, *, acts: bool = False) -> Rollout:
        scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
        token = request.match_info.get("token") or (bearer.strip() if scheme.lower() == "bearer" else "")
        if not token:
            raise Refusal(
                401,
                "token_missing",
                "use the endpoint that came with the episode, or send its token as Authorization: Bearer",
            )
        rollout = self._rollouts.find(token)
        rollout.check(request.headers.get(JOB_ARN), request.headers.get(TRAJECTORY_ID))
        if acts:
            rollout.hold(token)
        return rollout

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        rollout = self._rollout(request, acts=True)
        asked = openai.read(await _json(request))
        rollout.require_open("a turn")
        with rollout.call():
            turns = self._turns[rollout.trajectory_id]
            async with turns.turn(asked.ask, retry=_retries(request) > 0) as task:
                if asked.stream:
                    return await self._stream(request, rollout, asked, task)
                found = await _outcome(rollout, asyncio.shield(task))
                answer = web.json_response(openai.completion(asked, found, rollout.trajectory_id))
                await answer.prepare(request)
                await answer.write_eof()
                return answer

    async def _stream(
        self,
        request: web.Request,
        rollout: Rollout,
        asked: openai.ChatRequest,
        task: asyncio.Task[Completion],
    ) -> web.StreamResponse:
        """Server-sent events; an error before the first comment has a status of its own."""
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )
        while not (await asyncio.wait({task}, timeout=KEEP_ALIVE_SECONDS))[0]:
            if not response.prepared:
                await response.prepare(request)
            await response.write(b": the turn is being sampled\n\n")
        try:
            found = await _outcome(rollout, task)
        except Refusal as refusal:
            if not response.prepared:
                raise
            await response.write(_event(refusal.body))
            await response.write_eof()
            return response
        if not response.prepared:
            await response.prepare(request)
        events = [_event(chunk) for chunk in openai.chunks(asked, found, rollout.trajectory_id)]
        await response.write(b"".join(events) + b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _models(self, request: web.Request) -> web.StreamResponse:
        self._rollout(request)
        return web.json_response(openai.models())

    async def _tools(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"tools": list(self._rollout(request).tools)})

    async def _tool(self, request: web.Request) -> web.StreamResponse:
        rollout = self._rollout(request, acts=True)
        arguments = await _json(request)
        if not isinstance(arguments, dict):
            raise bad("body", "must be a JSON object, the tool's arguments")
        rollout.require_open("a tool call")
        with rollout.call():
            try:
                reply = await rollout.sandbox.tool(request.match_info["name"], arguments)
            except InfraFault as fault:
                raise _faulted(rollout, fault) from fault
        return web.json_response(reply.model_dump(mode="json"))

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        rollout, body = await self._told(request)
        status, error = body.get("Status", "ready"), body.get("ErrorMessage")
        if not isinstance(status, str):
            raise bad("Status", "must be 'ready' or 'failed'")
        rollout.complete(status, None if error is None else str(error)[:2000], _client_token(body))
        logs.event(_log, "rollout-completed", episode=rollout.trajectory_id, status=rollout.status)
        return web.json_response({"Status": rollout.status})

    async def _reward(self, request: web.Request) -> web.StreamResponse:
        rollout, body = await self._told(request)
        rollout.reward(body.get("Rewards"), body.get("Metrics"), _client_token(body))
        return web.json_response({"Status": rollout.status})

    async def _told(self, request: web.Request) -> tuple[Rollout, dict[str, Any]]:
        """The rollout and the body of one of MTRL's own calls."""
        rollout, body = self._rollout(request, acts=True), await _json(request)
        if not isinstance(body, dict):
            raise bad("body", "must be a JSON object")
        for name in ("JobArn", "TrajectoryId"):
            if not isinstance(body.get(name, ""), str):
                raise bad(name, "must be a string")
        rollout.check(body.get("JobArn"), body.get("TrajectoryId"))
        with rollout.call():
            return rollout, body


async def _outcome(rollout: Rollout, turn: Awaitable[Completion]) -> Completion:
    """The turn, and what it means for the episode; its faults as refusals."""
    try:
        found = await turn
    except ContextFull as full:
        rollout.truncated = str(full)
        raise Refusal(400, "context_length_exceeded", str(full), param="messages") from full
    except CannotForce as cannot:
        raise bad(
            "tool_choice", f"{cannot}; use auto, and ask for the call in the prompt", "unsupported_parameter"
        ) from cannot
    except CannotRender as error:
        raise bad("messages", str(error), "unrenderable") from error
    except InfraFault as fault:
        raise _faulted(rollout, fault) from fault
    except Refusal as refusal:
        if refusal.status == 429:
            rollout.fault = str(refusal)
        raise
    except asyncio.CancelledError:
        if rollout.closed:
            raise Refusal(409, "trajectory_status", f"trajectory {rollout.trajectory_id} is over") from None
        raise
    rollout.fault = None
    rollout.truncated = "a turn reached its most tokens" if found.finish_reason == "length" else None
    return found


def _faulted(rollout: Rollout, fault: InfraFault) -> Refusal:
    """A fault of the platform: should the agent fail of it, that is not the agent's fault."""
    rollout.fault = str(fault)
    return Refusal(502, "platform_fault", str(fault))


async def _json(request: web.Request) -> Any:
    try:
        return await request.json()
    except (ValueError, RecursionError) as error:
        raise bad("body", f"is not JSON: {error}") from error


def _client_token(body: dict[str, Any]) -> str | None:
    token = body.get("ClientToken")
    return None if token is None else str(token)


def _retries(request: web.Request) -> int:
    given = request.headers.get(RETRIES, "0")
    return int(given) if given.isdecimal() else 0


def _event(document: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(document, ensure_ascii=False)}\n\n".encode()


@web.middleware
async def _answer_refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refusal as refusal:
        headers = {"Retry-After": str(refusal.retry_after)} if refusal.retry_after else {}
        if refusal.status == 409:  # OpenAI's clients would send it again: what is over stays over
            headers["X-Should-Retry"] = "false"
        return web.json_response(refusal.body, status=refusal.status, reason=refusal.reason, headers=headers)
    except web.HTTPException as error:
        message = f"{error.reason}: {request.method} {request.path}; agents use POST /v1/chat/completions"
        return web.json_response(Refusal(error.status, "not_served", message).body, status=error.status)
