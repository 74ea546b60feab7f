"""OpenAI's chat completions: a request's JSON as an `Ask`, and a `Completion` as the answer's. Pure.

Fields that would change which tokens are sampled, and are not applied here, are refused. Other fields that
are not applied are listed (`unapplied.py`). Temperature and top_p are always the job's own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError

from headway_api import bounds
from headway_api.bounds import OutOfBoundsError, json_within
from headway_coordinator.gateway import formats, spellings
from headway_coordinator.gateway.asks import Ask, Completion, FieldNames, Force
from headway_coordinator.gateway.fields import (
    Number,
    Options,
    OtherNames,
    Seed,
    Stop,
    Tokens,
    every_stop,
    least_bound,
    left,
)
from headway_coordinator.gateway.neutral import Table, bounded, shown
from headway_coordinator.gateway.refusals import UNSUPPORTED, GatewayError, bad
from headway_coordinator.gateway.spellings import FormatOptions, ReasoningOptions
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
from headway_coordinator.trajectory.calls import Message, Tool

BLOCK_FIELDS = ("id", "name", "input", "tool_use_id", "is_error", "thinking")
"""Further fields of content blocks, besides those that are shown."""
MODEL = "default"
"""The name of the trained model. Any other name means the same model."""


# `fail_fast` in every list: if a million entries are wrong, the error names the first.
class _Function(BaseModel):
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(BaseModel):
    type: Literal["function"]
    function: _Function


class _Called(BaseModel):
    name: str = Field(min_length=1)
    arguments: str | dict[str, Any]


class _Call(BaseModel):
    id: str | None = None
    type: Literal["function"] = "function"
    function: _Called


class _Part(BaseModel):
    type: Literal["text"]
    text: str


class _Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[_Part], Field(max_length=bounds.MESSAGES, fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[_Call], Field(max_length=bounds.TOOLS, fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    """Another name of `reasoning_content`, which newer servers write into their answers."""
    prefix: StrictBool | None = None
    """Not applied: whether the answer continues this message."""
    partial: StrictBool | None = None
    """The same, as Qwen and Kimi write it."""
    images: Annotated[list[Any], Field(max_length=bounds.MESSAGES, fail_fast=True)] | None = None
    """Not applied: pictures, as Ollama takes them."""
    function_call: None = None
    """The old way to call a tool, which is not supported."""


class _NamedTool(BaseModel):
    name: str


class _Named(BaseModel):
    type: Literal["function"]
    function: _NamedTool


class StreamOptions(BaseModel):
    """The options of a stream."""

    include_usage: StrictBool | None = False


class Body(FormatOptions, ReasoningOptions, OtherNames):
    """A request for a turn, as received."""

    model_config = ConfigDict(extra="allow")

    model: str = MODEL
    messages: Annotated[list[_Message], Field(min_length=1, max_length=bounds.MESSAGES, fail_fast=True)]
    tools: Annotated[list[_Tool], Field(max_length=bounds.TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required", "any"] | _Named | None = None
    """`any` is Mistral's name of `required`."""
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
    """Not applied if it is false: the answer has all calls that the model sampled."""


WITHOUT_EFFECT: Final[Table] = beside({}, Body.model_fields)
"""Fields that are not applied, with the values at which they would change nothing."""
TEXT_ALONE: Final = "is not applied: this gateway accepts only text; leave it out"
CONTINUED: Final = (
    "is not applied: every turn begins a message of its own; leave it out, or set spec.agent.lenient: true"
)
INSTEAD: Final[dict[str, str]] = {
    **WHY,
    **dict.fromkeys(("system", "instructions"), SYSTEM),
    **dict.fromkeys(("reasoning", "output_config"), EFFORT),
    **dict.fromkeys(("text", "output_format"), "write response_format"),
    **dict.fromkeys(("input", "prompt"), "write messages"),
    "max_output_tokens": MAX_TOKENS_HINT,
    "stop_sequences": STOP,
}
"""Why a field is not applied, and what to do instead."""


@dataclass(frozen=True)
class ChatRequest:
    """A chat completion request that was read: a `dialect.TurnRequest`."""

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


def read(body: object, *, lenient: bool = False) -> ChatRequest:
    """Check a request's JSON.

    Args:
        body: the request, as `bodies.document` returns it: all of it can be written as JSON again.
        lenient: ignore fields that are not applied.

    Raises:
        GatewayError: names the field to change.
    """
    if not isinstance(body, dict):
        raise bad("body", "must be a JSON object")
    ignored = unapplied(body, WITHOUT_EFFECT, lenient=lenient, why=INSTEAD)
    try:
        asked = Body.model_validate(body)
    except ValidationError as error:
        refuse(error)
    if asked.tool_choice == "any":
        asked.tool_choice = "required"
    continued, pictures = _having(asked.messages, "prefix", "partial"), _having(asked.messages, "images")
    if continued and not lenient:
        raise bad(continued[0], CONTINUED, UNSUPPORTED)
    if pictures and not lenient:
        raise bad(pictures[0], TEXT_ALONE, UNSUPPORTED)
    tools = [_tool(tool) for tool in asked.tools or []]
    begun = _force(asked, tools)
    options = asked.options or Options()
    wanted = formats.of_chat(body, asked.response_format, lenient=lenient)
    json_answer = formats.one(wanted, bool(tools) and asked.tool_choice != "none", lenient)
    stop = every_stop(asked, asked.stop)
    effort, effort_at, variables = spellings.effort(asked, lenient=lenient)
    ask = Ask(
        messages=[_message(message, at) for at, message in enumerate(asked.messages)],
        tools=tools,
        may_call=asked.tool_choice != "none",
        max_tokens=least_bound(asked, asked.max_tokens, asked.max_completion_tokens),
        force=begun,
        stop=tuple(stop),
        temperature=options.temperature if asked.temperature is None else asked.temperature,
        top_p=options.top_p if asked.top_p is None else asked.top_p,
        logprobs=bool(asked.logprobs),
        schema=json_answer.schema,
        effort=effort,
        effort_at=effort_at,
        must_think=not lenient,
        names=FieldNames(schema=json_answer.name, stops=stop),
    )
    usage_in_stream = bool((asked.stream_options or StreamOptions()).include_usage)
    ignored += (*continued, *pictures, *json_answer.ignored, *variables, *left(asked, lenient=lenient))
    ignored += listed(body, Body.model_fields, WITHOUT_EFFECT)
    return ChatRequest(ask, asked.model, bool(asked.stream), usage_in_stream, ignored)


def _having(messages: Sequence[_Message], *names: str) -> tuple[str, ...]:
    """The places of fields that are not applied."""
    return bounded(
        f"messages.{at}.{name}"
        for at, message in enumerate(messages)
        for name in names
        if getattr(message, name)
    )


def completion(request: ChatRequest, found: Completion, trajectory_id: str) -> dict[str, Any]:
    """The answer without streaming."""
    choice = {
        "index": 0,
        "message": _chat_message(found.message),
        "finish_reason": found.finish_reason,
        "stop_reason": found.stopped,
        "logprobs": _logprobs(found),
    }
    head = _head(request, found, trajectory_id, "chat.completion")
    return head | {"choices": [choice], "usage": usage(found)}


def chunks(request: ChatRequest, found: Completion, trajectory_id: str) -> Iterator[dict[str, Any]]:
    """The answer as a stream's chunks."""
    head = _head(request, found, trajectory_id, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None, scored: Any = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": scored}
        return head | {"choices": [choice]} | ({"usage": None} if request.usage_in_stream else {})

    message = _chat_message(found.message)
    yield chunk({"role": "assistant", "content": ""})
    if reasoning := message.get("reasoning_content"):
        yield chunk({"reasoning_content": reasoning})
    if message["content"]:
        yield chunk({"content": message["content"]})
    for index, call in enumerate(message.get("tool_calls", [])):
        yield chunk({"tool_calls": [{"index": index} | call]})
    if found.scored:  # all tokens of the turn, because the tokens of a call are in no delta of their own
        yield chunk({}, scored=_logprobs(found))
    yield chunk({}, found.finish_reason)
    if request.usage_in_stream:
        yield head | {"choices": [], "usage": usage(found)}


def model(limit: int | None) -> dict[str, Any]:
    """The only model.

    Args:
        limit: tokens of its context; None: unknown.
    """
    head = {"id": MODEL, "object": "model", "created": 0, "owned_by": "headway"}
    return head | ({} if limit is None else {"max_model_len": limit})


def models(limit: int | None = None) -> dict[str, Any]:
    """The list of models."""
    return {"object": "list", "data": [model(limit)]}


def event(document: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return f"data: {json.dumps(document, ensure_ascii=False)}\n\n".encode()


def _logprobs(found: Completion) -> dict[str, Any] | None:
    """Log-probabilities of the sampled tokens, including special ones but not forced ones.

    None if not requested.
    """
    if not found.scored:
        return None
    return {
        "content": [
            {
                "token": one.text,
                "logprob": one.logprob,
                "bytes": list(one.text.encode(errors="replace")),
                "top_logprobs": [],
            }
            for one in found.scored
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


def _chat_message(message: Message) -> dict[str, Any]:
    content = message["content"]
    return {**message, "content": content or (None if message.get("tool_calls") else "")}


def usage(found: Completion) -> dict[str, Any]:
    """Tokens of a turn."""
    turn = found.turn
    return {
        "prompt_tokens": turn.prompt_tokens,
        "completion_tokens": turn.sampled_tokens,
        "total_tokens": turn.prompt_tokens + turn.sampled_tokens,
        "prompt_tokens_details": {"cached_tokens": turn.cached_tokens},
    }


def _tool(tool: _Tool) -> Tool:
    given = tool.function
    function: dict[str, Any] = {"name": given.name}
    if given.description is not None:
        function["description"] = given.description
    nothing = {"type": "object", "properties": {}}
    function["parameters"] = nothing if given.parameters is None else given.parameters
    return {"type": "function", "function": function}


def _force(asked: Body, tools: list[Tool]) -> Force | None:
    choice = asked.tool_choice
    if choice in (None, "none", "auto"):
        return None
    return force(choice.function.name if isinstance(choice, _Named) else None, tools)


def force(name: str | None, tools: Sequence[Tool]) -> Force:
    """A turn that must call the named tool; None: any tool.

    Raises:
        GatewayError: there is no such tool.
    """
    names = [tool["function"]["name"] for tool in tools]
    if not names:
        raise bad("tool_choice", "there are no tools to choose from; send tools, or leave it out")
    if name is None:
        return Force(names[0] if len(names) == 1 else None)
    if name not in names:
        raise bad("tool_choice", f"there is no tool {name[:100]!r}; there are: {', '.join(names)[:500]}")
    return Force(name)


def _message(message: _Message, at: int) -> Message:
    content = message.content
    if isinstance(content, list):
        # Blocks become lines, as in vLLM when the model is served. The model's own blocks were one text.
        content = ("" if message.role == "assistant" else "\n").join(part.text for part in content)
    found: Message = {
        "role": "system" if message.role == "developer" else message.role,
        "content": content or "",
    }
    if message.role == "tool":
        if message.tool_call_id is None:
            raise bad(
                f"messages.{at}.tool_call_id",
                "is missing; write the id of the tool call that this message answers",
            )
        found["tool_call_id"] = message.tool_call_id
    if message.name:
        found["name"] = message.name
    reasoning = message.reasoning_content or message.reasoning
    if reasoning and isinstance(reasoning, str):
        found["reasoning_content"] = reasoning
    if message.tool_calls:
        if message.role != "assistant":
            raise bad(f"messages.{at}.tool_calls", "only an assistant's message has tool calls")
        found["tool_calls"] = [
            _call(call, f"messages.{at}.tool_calls.{n}") for n, call in enumerate(message.tool_calls)
        ]
    return found


def _call(call: _Call, at: str) -> dict[str, Any]:
    text = arguments(call.function.arguments, f"{at}.function.arguments")
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": text}}


def arguments(given: str | dict[str, Any], at: str) -> str:
    """A call's arguments as canonical JSON.

    Raises:
        GatewayError: the field `at` is not JSON of an object.
    """
    if isinstance(given, str):
        try:
            given = json_within(given or "{}", bounds.ARGUMENTS)
        except OutOfBoundsError as error:
            raise bad(at, f"cannot be read: {error}") from error
        if not isinstance(given, dict):
            raise bad(at, "is not a JSON object")
    return json.dumps(given, ensure_ascii=False)


def refuse(error: ValidationError) -> NoReturn:
    """Raise the `GatewayError` that names the field of a request to change."""
    # A field may be read in several ways. The error with the deepest path explains the fault best.
    furthest = max(error.errors(include_url=False), key=lambda found: len(found["loc"]))
    path = ".".join(str(part) for part in furthest["loc"] if not _is_tag(part))
    if ".content." in path and path.rpartition(".")[2] not in BLOCK_FIELDS:
        raise bad(
            path, "this gateway accepts only text; send content of type text", "unsupported_content"
        ) from error
    raise bad(path or "body", f"{furthest['msg']} (got {shown(furthest['input'])})") from error


def _is_tag(part: str | int) -> bool:
    """Whether a part of an error's path names an alternative of a union instead of a field."""
    return isinstance(part, str) and (part == "str" or not part.isidentifier() or part.startswith("_"))
