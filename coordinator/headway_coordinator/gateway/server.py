"""The gateway over HTTP, for agents outside this process.

The server translates requests into turns and tool calls, and their results into answers. It also records
events that decide the episode's outcome, such as faults and truncation.

The routes exist under an episode's own base URL, `/e/{token}`. They also exist at the root, for requests that
have the token as Authorization: Bearer, or the episode's rolloutId in MTRL's header or body. The rolloutId
contains the token.

POST /v1/chat/completions   OpenAI's, streamed or not      GET  /v1/models, /v1/models/{id}
POST /v1/responses          OpenAI's newer form
POST /v1/messages           Anthropic's, streamed or not   POST /v1/messages/count_tokens
POST /v1/completions        continues a text, for models that know no conversations
GET  /v1/tools              the environment's tools        POST /v1/tools/{name}   its arguments -> ToolReply
POST /complete-rollout      JobArn, TrajectoryId, Status: ready | failed, ClientToken?, ErrorMessage?
POST /update-reward         JobArn, TrajectoryId, Rewards: [number], Metrics?, ClientToken?

GET /openapi.json describes these routes as an OpenAPI document, and needs no token.

If the URL, MTRL's header or the body has the token, the Authorization header may have any other value. A
streamed answer begins when the turn is complete. A token counts only once the weights that sampled it are
proven, and tool calls are parsed from whole turns. Until then, comments keep the connection alive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from aiohttp import web

from headway_api import bounds, logs
from headway_api.bounds import shortened
from headway_coordinator.engines.vllm import SchemaRefusedError
from headway_coordinator.faults import CandidateError, InfraError
from headway_coordinator.gateway import (
    bodies,
    completions,
    messages,
    openai,
    openapi,
    responses,
    writing,
)
from headway_coordinator.gateway.allowance import AllowanceSpentError, NoTokensLeftError
from headway_coordinator.gateway.asks import Ask, Completion, ForcedCallError, RenderError, UnknownEffortError
from headway_coordinator.gateway.dialect import Read, TurnRequest
from headway_coordinator.gateway.refusals import UNSUPPORTED, GatewayError, bad
from headway_coordinator.gateway.rollouts import Rollout, Rollouts, token_in
from headway_coordinator.gateway.stops import StopInMarkupError
from headway_coordinator.gateway.turns import Backend, Client, Counts, Turn, Turns
from headway_wire.contents import BodyTooLargeError
from headway_wire.listening import known, on_reset

MAX_BODY = bounds.CONVERSATION
"""The most bytes of a request. To read more would delay the other episodes."""
KEEP_ALIVE_SECONDS = 10.0
"""Seconds between two comments in a stream while its turn is incomplete."""
TOOLS = "tools"
"""The key of `Rollout.faults` for faults of tool calls. No later call resolves such a fault."""
JOB_ARN = "X-Amzn-SageMaker-Job-Arn"
TRAJECTORY_ID = "X-Amzn-SageMaker-Trajectory-Id"
RETRIES = "X-Stainless-Retry-Count"
"""The header in which OpenAI's clients count their retries."""
RETRIES_DIGITS = 9

MODEL_CANNOT = (
    *(NoTokensLeftError, ForcedCallError, RenderError, UnknownEffortError, SchemaRefusedError),
    StopInMarkupError,
)
"""Errors that say that this model cannot answer the request. They are no faults of the platform."""

LENIENT = "spec.agent.lenient: true lets the request go on"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_log = logging.getLogger(__name__)


class GatewayServer:
    """The HTTP routes, over the rollouts that are open."""

    def __init__(self) -> None:
        self._rollouts = Rollouts()
        self._turns: dict[str, Turns] = {}
        self._parsing = asyncio.Lock()

    @asynccontextmanager
    async def open(self, rollout: Rollout, backend: Backend) -> AsyncIterator[Rollout]:
        """Admit an episode's agent until the block ends. `backend` answers its turns."""
        turns = self._turns[rollout.trajectory_id] = Turns(backend, rollout)
        with self._rollouts.open(rollout):
            try:
                yield rollout
            finally:
                rollout.close()
                del self._turns[rollout.trajectory_id]
                await turns.close()

    def renew(self, rollout: Rollout) -> bool:
        """Give an open rollout a new token, for a prompt that is sent again; see `Rollouts.renew`."""
        return self._rollouts.renew(rollout)

    def app(self) -> web.Application:
        """The aiohttp application.

        The caller must run it with `handler_cancellation`, so that a handler is cancelled if its client
        leaves.
        """
        app = web.Application(middlewares=[_answer_refusals], client_max_size=MAX_BODY)
        for base in ("", "/e/{token}"):
            # Some agents configure OpenAI's client without `/v1` in the base URL, as the SDK's docs do.
            for own in (f"{base}/v1", base):
                app.router.add_post(f"{own}/chat/completions", partial(self._turn, openai.read))
                app.router.add_post(f"{own}/responses", self._respond)
                app.router.add_post(f"{own}/completions", self._continue)
                app.router.add_get(f"{own}/models", self._models)
                app.router.add_get(f"{own}/models/{{id:.+}}", self._model)
            app.router.add_post(f"{base}/v1/messages", partial(self._turn, messages.read))
            app.router.add_post(f"{base}/v1/messages/count_tokens", self._count)
            app.router.add_get(f"{base}/v1/tools", self._tools)
            app.router.add_post(f"{base}/v1/tools/{{name}}", self._tool)
            app.router.add_post(f"{base}/complete-rollout", self._complete)
            app.router.add_post(f"{base}/update-reward", self._reward)
        app.router.add_get("/openapi.json", _openapi)
        return app

    def _rollout(self, request: web.Request, body: Any = None) -> tuple[Rollout, str]:
        """The episode's rollout, and the token with which it was found."""
        scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
        token = (
            _in_head(request)
            or (token_in(body.get("TrajectoryId")) if isinstance(body, dict) else "")
            or (bearer.strip() if scheme.lower() == "bearer" else "")
            or request.headers.get("x-api-key", "").strip()
        )
        if not token:
            raise GatewayError(
                401,
                "token_missing",
                "use the endpoint that came with the episode, or send its rolloutId as "
                f"{TRAJECTORY_ID}, or its token as Authorization: Bearer or as x-api-key",
            )
        rollout = self._rollouts.find(token)
        known(request)
        rollout.check(request.headers.get(JOB_ARN), request.headers.get(TRAJECTORY_ID))
        return rollout, token

    async def _turn(
        self,
        read: Read,
        request: web.Request,
        at: str = "messages",
        values: int = bounds.CONVERSATION_VALUES,
    ) -> web.StreamResponse:
        """Answer a request for a turn. `at` names the field with the conversation, for errors. `values` is
        the most JSON values of the body."""
        rollout, token = self._rollout(request)
        rollout.require_open("a turn")
        turns = self._turns[rollout.trajectory_id]
        try:
            reader = partial(read, lenient=rollout.lenient)
            asked = await bodies.turn_request(request, MAX_BODY, turns.big, self._parsing, reader, values)
        except BodyTooLargeError as error:
            rollout.truncated = f"a request of more than {MAX_BODY} bytes fits no context"
            raise GatewayError(400, "context_length_exceeded", rollout.truncated, param=at) from error
        rollout.require_open("a turn")
        rollout.claim(token)
        session, unread = rollout.session, _unread(turns.backend, asked.ask)
        if unread and not rollout.lenient:
            raise bad("tools", f"{turns.backend.unread}; {LENIENT}", UNSUPPORTED)
        session.ignore([*asked.ignored, *unread, *asked.ask.overruled(session.sampling)])
        with rollout.call():
            async with turns.turn(asked.ask, retry=_retries(request) > 0) as client:
                if asked.stream:
                    return await self._stream(request, turns, asked, client)
                found = await _outcome(rollout, asked.ask, client.turn)
                answer = web.json_response(text=await writing.document(asked, found, rollout.trajectory_id))
                turns.deliver(client, asked.ask)
                on_reset(request, partial(turns.reset, client))
                await answer.prepare(request)
                await answer.write_eof()
                return answer

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        rollout, _ = self._rollout(request)
        read = partial(responses.read, earlier=partial(responses.earlier, rollout))
        return await self._turn(read, request, at="input")

    async def _continue(self, request: web.Request) -> web.StreamResponse:
        return await self._turn(completions.read, request, at="prompt", values=bounds.PROMPT_VALUES)

    async def _stream(
        self,
        request: web.Request,
        turns: Turns,
        asked: TurnRequest,
        client: Client,
    ) -> web.StreamResponse:
        """Answer with server-sent events.

        An error before the stream begins has an HTTP error status. Later errors are sent as an event.
        """
        turn = client.turn
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )
        while not (await asyncio.wait({turn.task}, timeout=KEEP_ALIVE_SECONDS))[0]:
            if turn.placed.is_set():
                if not response.prepared:
                    await response.prepare(request)
                await response.write(b": the turn is being sampled\n\n")
        try:
            found = await _outcome(turns.rollout, asked.ask, turn)
            turns.deliver(client, asked.ask)
        except GatewayError as refusal:
            if not response.prepared:
                raise
            await response.write(asked.failed(refusal))
            await response.write_eof()
            return response
        if not response.prepared:
            await response.prepare(request)
        await response.write(await writing.events(asked, found, turns.rollout.trajectory_id))
        with suppress(ConnectionError):  # the client has everything already
            await response.write_eof()
        return response

    async def _count(self, request: web.Request) -> web.StreamResponse:
        """Answer with the number of tokens in a prompt. Nothing is recorded in the episode."""
        rollout, token = self._rollout(request)
        rollout.require_open("a count")
        rollout.require_holder(token)
        turns = self._turns[rollout.trajectory_id]
        reader = partial(messages.read_count, lenient=rollout.lenient)
        asked = await bodies.turn_request(request, MAX_BODY, turns.big, self._parsing, reader)
        chat = turns.backend.chat
        if not isinstance(chat, Counts):
            raise bad("messages", "an endpoint counts only the tokens of answers", "unsupported_parameter")
        with rollout.call():
            try:
                tokens = await chat.count(rollout.session, asked.ask)
            except MODEL_CANNOT as error:
                raise _impossible(error, asked.ask) from error
        return web.json_response({"input_tokens": tokens})

    async def _models(self, request: web.Request) -> web.StreamResponse:
        rollout, _ = self._rollout(request)
        return web.json_response(openai.models(self._context_length(rollout)))

    async def _model(self, request: web.Request) -> web.StreamResponse:
        rollout, _ = self._rollout(request)
        return web.json_response(openai.model(self._context_length(rollout)))

    def _context_length(self, rollout: Rollout) -> int | None:
        turns = self._turns.get(rollout.trajectory_id)
        return turns.backend.context_length if turns is not None else None

    async def _tools(self, request: web.Request) -> web.StreamResponse:
        rollout, _ = self._rollout(request)
        return web.json_response({"tools": list(rollout.tools)})

    async def _tool(self, request: web.Request) -> web.StreamResponse:
        rollout, token = self._rollout(request)
        rollout.require_open("a tool call")
        arguments = await bodies.arguments(request)
        rollout.require_open("a tool call")
        rollout.claim(token)
        name = request.match_info["name"]
        with rollout.call():
            try:
                reply = await rollout.sandbox.tool(name, arguments)
            except asyncio.CancelledError:
                # The tool may have acted already, and a retry would do the same twice.
                rollout.faults[TOOLS] = f"the call of {name} was cut short"
                raise
            except Exception as error:
                raise _faulted(rollout, TOOLS, error) from error
        return web.json_response(reply.model_dump(mode="json"))

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        rollout, token, body = await self._own_call(request)
        status, error = body.get("Status"), body.get("ErrorMessage")
        if not isinstance(status, str):  # a default of success would hide misspelt failures
            raise bad("Status", "must be 'ready' or 'failed'")
        with rollout.call():
            rollout.complete(status, None if error is None else str(error)[:2000], _client_token(body))
            rollout.claim(token)
            if (turns := self._turns.get(rollout.trajectory_id)) is not None:
                await turns.close()  # a turn that ended later would not be judged
        logs.event(_log, "rollout-completed", episode=rollout.trajectory_id, status=rollout.status)
        return web.json_response({"Status": rollout.status})

    async def _reward(self, request: web.Request) -> web.StreamResponse:
        rollout, token, body = await self._own_call(request)
        with rollout.call():
            rollout.reward(body.get("Rewards"), body.get("Metrics"), _client_token(body))
            rollout.claim(token)
        return web.json_response({"Status": rollout.status})

    async def _own_call(self, request: web.Request) -> tuple[Rollout, str, dict[str, Any]]:
        """The rollout, the token that found it, and the body of one of MTRL's own calls."""
        if _in_head(request):  # refuse a wrong token before the body is read
            self._rollout(request)
        body = await bodies.call(request, min(MAX_BODY, bounds.CALL))
        rollout, token = self._rollout(request, body)
        for name in ("JobArn", "TrajectoryId"):
            if not isinstance(body.get(name, ""), str):
                raise bad(name, "must be a string")
        rollout.check(body.get("JobArn"), body.get("TrajectoryId"))
        rollout.require_holder(token)
        return rollout, token, body


async def _openapi(request: web.Request) -> web.StreamResponse:
    return web.Response(body=openapi.document(), content_type=openapi.JSON)


async def _outcome(rollout: Rollout, ask: Ask, turn: Turn) -> Completion:
    """Wait for the turn, and note whether the episode is truncated. Errors become a `GatewayError`."""
    try:
        found = await asyncio.shield(turn.task)
    except MODEL_CANNOT as error:
        if isinstance(error, NoTokensLeftError):
            rollout.truncated = str(error)
        raise _impossible(error, ask) from error
    except GatewayError as refusal:
        if refusal.code == "servers_full":
            rollout.faults[turn.request] = str(refusal)
        raise
    except asyncio.CancelledError:
        if turn.task.cancelled():
            rollout.require_open("a turn")
        raise
    except Exception as error:
        raise _faulted(rollout, turn.request, error) from error
    rollout.truncated = rollout.session.cut if _cut_off(rollout, ask, found) else None
    return found


def _impossible(error: Exception, ask: Ask) -> GatewayError:
    """The error answer for one of the errors in `MODEL_CANNOT`."""
    if isinstance(error, AllowanceSpentError):
        return GatewayError(400, "episode_token_limit_reached", str(error), param=ask.names.limit)
    if isinstance(error, UnknownEffortError):
        message = f"{error}; leave it out, or set spec.agent.lenient: true"
        return bad(ask.effort_at, message, "unsupported_parameter")
    if isinstance(error, SchemaRefusedError):
        return bad(ask.names.schema, f"{error}; simplify the schema, or ask for the JSON in the prompt")
    if isinstance(error, NoTokensLeftError):
        return GatewayError(400, "context_length_exceeded", str(error), param=ask.names.conversation)
    if isinstance(error, StopInMarkupError):
        return bad(ask.names.stops.get(error.stop, "stop"), error.why)
    if isinstance(error, ForcedCallError):
        message = f"{error}; use auto, and ask for the call in the prompt"
        return bad("tool_choice", message, "unsupported_parameter")
    return bad(ask.names.conversation, str(error), "unrenderable")


def _unread(backend: Backend, ask: Ask) -> tuple[str, ...]:
    """The name `tools`, if the request has tools and the model's tool calls cannot be parsed."""
    return ("tools",) if backend.unread is not None and ask.tools and ask.may_call else ()


def _cut_off(rollout: Rollout, ask: Ask, found: Completion) -> bool:
    """Whether the job or the context ended the turn, rather than a smaller bound of the agent's own."""
    own = ask.max_tokens is not None and ask.max_tokens < rollout.session.sampling.max_tokens
    return found.finish_reason == "length" and not (own and found.turn.sampled_tokens == ask.max_tokens)


def _faulted(rollout: Rollout, request: str, error: Exception) -> GatewayError:
    """Note a fault of the platform, so that the model is not judged by the agent's reaction to the fault.

    Returns the error answer, with status 502.
    """
    if isinstance(error, CandidateError):
        rollout.end(error)
        return GatewayError(502, "candidate_fault", str(error))
    if not isinstance(error, InfraError):
        _log.exception("a call of %s failed", rollout.trajectory_id)
    if isinstance(error, InfraError) and error.cause is not None:
        rollout.cause = error.cause
    rollout.faults[request] = (
        str(error) if isinstance(error, InfraError) else f"{type(error).__name__}: {error}"
    )
    return GatewayError(502, "platform_fault", rollout.faults[request])


def _in_head(request: web.Request) -> str:
    """The token in the URL or in MTRL's header; empty if neither has one.

    In that case the body, Authorization or x-api-key may have it.
    """
    return request.match_info.get("token") or token_in(request.headers.get(TRAJECTORY_ID))


def _route(request: web.Request) -> str:
    """The route's name, without the token that its path may contain."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "unknown"


def _client_token(body: dict[str, Any]) -> str | None:
    token = body.get("ClientToken")
    if token is None:
        return None
    if not isinstance(token, str | int) or len(str(token)) > bounds.NAME:
        raise bad("ClientToken", f"must be text of at most {bounds.NAME} characters")
    return str(token)


def _retries(request: web.Request) -> int:
    given = request.headers.get(RETRIES, "0")
    return int(given) if given.isdecimal() and len(given) <= RETRIES_DIGITS else 0


@web.middleware
async def _answer_refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except GatewayError as refusal:
        headers = {"Retry-After": str(refusal.retry_after)} if refusal.retry_after else {}
        if refusal.status == 409:  # OpenAI's clients would retry, but the rollout stays over
            headers["X-Should-Retry"] = "false"
        answer = web.json_response(
            refusal.body, status=refusal.status, reason=refusal.reason, headers=headers
        )
        if refusal.status == 408:
            answer.force_close()
        return answer
    except BodyTooLargeError as error:
        message = f"the body has {error}, the limit of this gateway"
        answer = web.json_response(GatewayError(413, "request_too_large", message).body, status=413)
        answer.force_close()
        return answer
    except web.HTTPException as error:
        # The path may contain an episode's token, and agents keep answers in their logs.
        message = f"{error.reason}: no such route; agents use POST /v1/chat/completions"
        return web.json_response(GatewayError(error.status, "not_served", message).body, status=error.status)
    except ConnectionError:  # the client left, so nobody can be answered
        raise
    except Exception as error:
        _log.exception("%s %s failed", request.method, _route(request))
        message = f"the gateway failed: {type(error).__name__}: {shortened(str(error), 500)}"
        return web.json_response(GatewayError(500, "platform_fault", message).body, status=500)
