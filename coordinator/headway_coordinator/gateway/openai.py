"""OpenAI's chat completions: reads a request's JSON as an `Ask`, and writes a `Completion` as JSON. Pure.

A field that is not applied here is refused if it would change which tokens are sampled. Otherwise it is
listed (`unapplied.py`). Temperature and top_p are always the job's own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, StrictBool

from headway_api import bounds
from headway_coordinator.gateway import formats, spellings, tool_choices
from headway_coordinator.gateway.asks import Ask, Completion, FieldNames, Scored
from headway_coordinator.gateway.blocks import Block, Unread, unread
from headway_coordinator.gateway.chat_messages import ChatMessage, ChatTool, message, tool
from headway_coordinator.gateway.fields import (
    Model,
    Number,
    Options,
    OtherNames,
    Seed,
    Stop,
    Tokens,
    every_stop,
    ignored_options,
    least_bound,
)
from headway_coordinator.gateway.neutral import Table
from headway_coordinator.gateway.refusals import GatewayError, bad
from headway_coordinator.gateway.slices import checked
from headway_coordinator.gateway.spellings import FormatOptions, ReasoningOptions
from headway_coordinator.gateway.tool_choices import ChatChoice, Word
from headway_coordinator.gateway.unapplied import (
    EFFORT,
    MAX_TOKENS_HINT,
    STOP,
    SYSTEM,
    WHY,
    beside,
    listed,
    unapplied,
)
from headway_coordinator.trajectory.calls import Message

MODEL = "default"
"""The name of the trained model. Any other name means the same model."""
SCORED_IN_A_CHUNK: Final = 1_000
"""The most tokens whose log-probabilities are in one event of a stream."""


class StreamOptions(Block):
    """The options of a stream."""

    UNREAD = Unread(listed={"continuous_usage_stats": (None, False)}, inert=("include_obfuscation",))

    include_usage: StrictBool | None = False


class Body(FormatOptions, ReasoningOptions, OtherNames):
    """The JSON body of a request for a turn."""

    model_config = ConfigDict(extra="allow")

    model: Model = MODEL
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=bounds.MESSAGES, fail_fast=True)]
    tools: Annotated[list[ChatTool], Field(max_length=bounds.TOOLS, fail_fast=True)] | None = None
    tool_choice: Word | ChatChoice | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | None = None
    logprobs: StrictBool | None = None
    """Whether the answer has the log-probability of each sampled token."""
    seed: Seed | None = None
    parallel_tool_calls: StrictBool | None = None
    """False is not applied: the answer always has all calls that the model sampled."""


WITHOUT_EFFECT: Final[Table] = beside({}, Body.model_fields)
"""Field that is not applied -> the values at which it would change nothing."""
INSTEAD: Final[dict[str, str]] = {
    **WHY,
    **dict.fromkeys(("system", "instructions"), SYSTEM),
    **dict.fromkeys(("reasoning", "output_config"), EFFORT),
    **dict.fromkeys(("text", "output_format"), "write response_format"),
    **dict.fromkeys(("input", "prompt"), "write messages"),
    "max_output_tokens": MAX_TOKENS_HINT,
    "stop_sequences": STOP,
}
"""Field -> why it is not applied, and what to do instead."""


@dataclass(frozen=True)
class ChatRequest:
    """A parsed request for a chat completion: a `dialect.TurnRequest`."""

    ask: Ask
    model: str
    stream: bool
    usage_in_stream: bool
    ignored: tuple[str, ...] = ()

    def whole(self, found: Completion, trajectory_id: str) -> dict[str, Any]:
        """The answer without streaming."""
        return completion(self, found, trajectory_id)

    def events(self, found: Completion, trajectory_id: str) -> Iterator[bytes]:
        """The answer as server-sent events."""
        for chunk in chunks(self, found, trajectory_id):
            yield event(chunk)
        yield b"data: [DONE]\n\n"

    def failed(self, refusal: GatewayError) -> bytes:
        """The event that ends a stream with an error."""
        return event(refusal.body)


def read(body: object, *, lenient: bool = False, large: bool = False) -> ChatRequest:
    """Check a request's JSON.

    Args:
        body: the request, as `bodies.document` returns it, so that it can be written as JSON again.
        lenient: ignore fields that are not applied, instead of refusing the request.
        large: check the request in slices (`slices.py`).

    Raises:
        GatewayError: names the field to change.
    """
    if not isinstance(body, dict):
        raise bad("body", "must be a JSON object")
    ignored = unapplied(body, WITHOUT_EFFECT, lenient=lenient, why=INSTEAD)
    asked = checked(Body, body, "messages", large=large)
    nested = unread(asked, lenient=lenient)
    tools = [tool(one) for one in asked.tools or []]
    choice = tool_choices.of_chat(asked.tool_choice, tools, lenient=lenient)
    options = asked.options or Options()
    wanted = formats.of_chat(body, asked.response_format, lenient=lenient)
    json_answer = formats.chosen_schema(wanted, bool(tools) and choice.may_call, lenient)
    stop = every_stop(asked, asked.stop)
    effort, effort_at, variables = spellings.effort(asked, lenient=lenient)
    ask = Ask(
        messages=[message(one, at) for at, one in enumerate(asked.messages)],
        tools=tools,
        may_call=choice.may_call,
        max_tokens=least_bound(asked, asked.max_tokens, asked.max_completion_tokens),
        force=choice.force,
        stop=tuple(stop),
        temperature=options.temperature if asked.temperature is None else asked.temperature,
        top_p=options.top_p if asked.top_p is None else asked.top_p,
        logprobs=bool(asked.logprobs),
        schema=json_answer.schema,
        effort=effort,
        effort_at=effort_at,
        must_think=not lenient and effort not in ("none", "on"),
        names=FieldNames(schema=json_answer.name, stops=stop),
    )
    usage_in_stream = bool((asked.stream_options or StreamOptions()).include_usage)
    ignored += (
        *nested,
        *choice.ignored,
        *json_answer.ignored,
        *variables,
        *ignored_options(asked, lenient=lenient),
    )
    ignored += listed(body, Body.model_fields, WITHOUT_EFFECT)
    return ChatRequest(ask, asked.model, bool(asked.stream), usage_in_stream, ignored)


def completion(request: ChatRequest, found: Completion, trajectory_id: str) -> dict[str, Any]:
    """The answer without streaming."""
    choice = {
        "index": 0,
        "message": _chat_message(found.message),
        "finish_reason": found.finish_reason,
        "stop_reason": found.stopped,
        "logprobs": _logprobs(found.scored),
    }
    head = _head(request, found, trajectory_id, "chat.completion")
    return head | {"choices": [choice], "usage": usage(found)}


def chunks(request: ChatRequest, found: Completion, trajectory_id: str) -> Iterator[dict[str, Any]]:
    """The answer as a stream's chunks."""
    head = _head(request, found, trajectory_id, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None, scored: Any = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": scored}
        return head | {"choices": [choice]} | ({"usage": None} if request.usage_in_stream else {})

    said = _chat_message(found.message)
    yield chunk({"role": "assistant", "content": ""})
    if reasoning := said.get("reasoning_content"):
        yield chunk({"reasoning_content": reasoning})
    if said["content"]:
        yield chunk({"content": said["content"]})
    for index, call in enumerate(said.get("tool_calls", [])):
        yield chunk({"tool_calls": [{"index": index} | call]})
    # The last chunks have the log-probabilities of all tokens, because a call has no delta for each token.
    for start in range(0, len(found.scored), SCORED_IN_A_CHUNK):
        yield chunk({}, scored=_logprobs(found.scored[start : start + SCORED_IN_A_CHUNK]))
    last = chunk({}, found.finish_reason)
    yield last | {"choices": [last["choices"][0] | {"stop_reason": found.stopped}]}
    if request.usage_in_stream:
        yield head | {"choices": [], "usage": usage(found)}


def model(limit: int | None) -> dict[str, Any]:
    """The only model's entry in the list of models.

    Args:
        limit: the most tokens of its context; None: unknown.
    """
    head = {"id": MODEL, "object": "model", "created": 0, "owned_by": "headway"}
    return head | ({} if limit is None else {"max_model_len": limit})


def models(limit: int | None = None) -> dict[str, Any]:
    """The list of models."""
    return {"object": "list", "data": [model(limit)]}


def event(document: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return f"data: {json.dumps(document, ensure_ascii=False)}\n\n".encode()


def _logprobs(scored: Sequence[Scored]) -> dict[str, Any] | None:
    """Log-probabilities of sampled tokens, including special tokens but not forced ones.

    None if the request does not ask for them.
    """
    if not scored:
        return None
    return {
        "content": [
            {
                "token": one.text,
                "logprob": one.logprob,
                "bytes": list(one.text.encode(errors="replace")),
                "top_logprobs": [],
            }
            for one in scored
        ],
        "refusal": None,
    }


def _head(request: ChatRequest, found: Completion, trajectory_id: str, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{trajectory_id}-{found.number}",
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
        "system_fingerprint": f"policy-{found.turn.policy_version}",
    }


def _chat_message(said: Message) -> dict[str, Any]:
    return {**said, "content": said["content"] or (None if said.get("tool_calls") else "")}


def usage(found: Completion) -> dict[str, Any]:
    """The token counts of a turn, in OpenAI's form."""
    turn = found.turn
    return {
        "prompt_tokens": turn.prompt_tokens,
        "completion_tokens": turn.sampled_tokens,
        "total_tokens": turn.prompt_tokens + turn.sampled_tokens,
        "prompt_tokens_details": {"cached_tokens": turn.cached_tokens},
    }
