"""OpenAI's chat completions: a request's JSON as an `Ask`, and a `Completion` as the answer's. Pure.

What would change which tokens are sampled, and is not applied here, is refused: an agent must not believe
that it sampled from another distribution than the one that is trained. Temperature and top_p are the job's
own, whatever an agent writes, for the same reason. Everything else that clients send is ignored.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError

from headway_api import bounds
from headway_api.bounds import OutOfBounds, json_within
from headway_coordinator.gateway.core import Ask, Completion, Force
from headway_coordinator.gateway.refusals import bad
from headway_coordinator.trajectory.calls import Message, Tool

MODEL = "default"
"""Name of the model that is trained; any other is taken for it."""
WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "n": (None, 1),
    "stop": (None, [], ""),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "top_k": (None, -1, 0),
    "min_p": (None, 0),
    "response_format": (None, {"type": "text"}),
    "best_of": (None, 1),
    "min_tokens": (None, 0),
    "ignore_eos": (None, False),
    "stop_token_ids": (None, []),
    "bad_words": (None, []),
    "allowed_token_ids": (None,),
    "length_penalty": (None, 1),
    "use_beam_search": (None, False),
    "logits_processors": (None, []),
    "repetition_detection": (None,),
    "thinking_token_budget": (None,),
    "watermarking": (None,),
    "vllm_xargs": (None, {}),
    "structured_outputs": (None, {}),
    "structural_tag": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "reasoning_effort": (None,),
    "chat_template": (None,),
    "chat_template_kwargs": (None, {}),
    "documents": (None, []),
    "truncate_prompt_tokens": (None,),
    "add_special_tokens": (None, False),
    "prompt_logprobs": (None,),
    "echo": (None, False),
    "continue_final_message": (None, False),
    "add_generation_prompt": (None, True),
    "enable_thinking": (None,),
    "thinking": (None,),
    "regex": (None,),
    "json_schema": (None,),
    "ebnf": (None,),
    "grammar": (None,),
    "guided_decoding_backend": (None,),
    "guided_whitespace_pattern": (None,),
    "min_new_tokens": (None, 0),
    "max_new_tokens": (None,),
    "n_predict": (None, -1),
    "stop_regex": (None, [], ""),
    "no_stop_trim": (None, False),
    "include_stop_str_in_output": (None, False),
    "skip_special_tokens": (None, True),
    "spaces_between_special_tokens": (None, True),
    "typical_p": (None, 1),
    "top_a": (None, 0),
    "tfs": (None, 1),
    "tfs_z": (None, 1),
    "mirostat": (None, 0),
    "dynatemp_range": (None, 0),
    "xtc_probability": (None, 0),
    "dry_multiplier": (None, 0),
    "repeat_penalty": (None, 1),
    "repeat_last_n": (None,),
    "no_repeat_ngram_size": (None, 0),
    "penalty_alpha": (None, 0),
    "num_beams": (None, 1),
    "do_sample": (None, True),
    "samplers": (None, []),
    "custom_logit_processor": (None,),
    "custom_params": (None,),
    "session_params": (None,),
    "lora_path": (None,),
    "input_ids": (None,),
    "input_embeds": (None,),
    "functions": (None, []),
    "function_call": (None,),
    "audio": (None,),
    "modalities": (None, ["text"]),
}
"""Fields that are not applied, with the values at which that makes no difference."""


# Of every list `fail_fast`: one of a million entries that are wrong is told by its first.
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
    function_call: None = None
    """The old way to call a tool, which is not read."""


class _NamedTool(BaseModel):
    name: str


class _Named(BaseModel):
    type: Literal["function"]
    function: _NamedTool


_Tokens = Annotated[StrictInt, Field(ge=1, le=10**9)]
_Number = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=100)]
"""The job's own is taken instead, but what is none is a mistake that the agent should hear of."""


class _StreamOptions(BaseModel):
    include_usage: StrictBool | None = False


class Body(BaseModel):
    """A request for a turn, as it comes."""

    model_config = ConfigDict(extra="allow")

    model: str = MODEL
    messages: Annotated[list[_Message], Field(min_length=1, max_length=bounds.MESSAGES, fail_fast=True)]
    tools: Annotated[list[_Tool], Field(max_length=bounds.TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | _Named | None = None
    max_tokens: _Tokens | None = None
    max_completion_tokens: _Tokens | None = None
    temperature: _Number | None = None
    top_p: _Number | None = None
    stream: StrictBool | None = None
    stream_options: _StreamOptions | None = None


@dataclass(frozen=True)
class ChatRequest:
    """A chat completion as it was asked for."""

    ask: Ask
    model: str
    stream: bool
    usage_in_stream: bool


def read(body: object) -> ChatRequest:
    """Check a request's JSON.

    Raises:
        Refusal: naming the field that must be changed.
    """
    if not isinstance(body, dict):
        raise bad("body", "must be a JSON object")
    for name, neutral in WITHOUT_EFFECT.items():
        if not any(body.get(name) == value for value in neutral):
            raise bad(
                name,
                f"{_shown(body[name])} is not applied, because tokens must be sampled from "
                "the policy that is trained; leave it out",
                "unsupported_parameter",
            )
    try:
        asked = Body.model_validate(body)
    except ValidationError as error:
        _refuse(error)
    _require_text(body)
    tools = [_tool(tool) for tool in asked.tools or []]
    force = _force(asked, tools)
    bounds = [bound for bound in (asked.max_tokens, asked.max_completion_tokens) if bound is not None]
    ask = Ask(
        messages=[_message(message, at) for at, message in enumerate(asked.messages)],
        tools=tools,
        may_call=asked.tool_choice != "none",
        max_tokens=min(bounds, default=None),
        force=force,
    )
    options = asked.stream_options or _StreamOptions()
    return ChatRequest(ask, asked.model, bool(asked.stream), bool(options.include_usage))


def completion(request: ChatRequest, found: Completion, trajectory_id: str) -> dict[str, Any]:
    """The answer, where it is not streamed."""
    choice = {
        "index": 0,
        "message": _said(found.message),
        "finish_reason": found.finish_reason,
        "logprobs": None,
    }
    head = _head(request, found, trajectory_id, "chat.completion")
    return head | {"choices": [choice], "usage": _usage(found)}


def chunks(request: ChatRequest, found: Completion, trajectory_id: str) -> Iterator[dict[str, Any]]:
    """The answer as a stream's chunks."""
    head = _head(request, found, trajectory_id, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return head | {"choices": [choice]} | ({"usage": None} if request.usage_in_stream else {})

    said = _said(found.message)
    yield chunk({"role": "assistant", "content": ""})
    if reasoning := said.get("reasoning_content"):
        yield chunk({"reasoning_content": reasoning})
    if said["content"]:
        yield chunk({"content": said["content"]})
    for index, call in enumerate(said.get("tool_calls", [])):
        yield chunk({"tool_calls": [{"index": index} | call]})
    yield chunk({}, found.finish_reason)
    if request.usage_in_stream:
        yield head | {"choices": [], "usage": _usage(found)}


def models() -> dict[str, Any]:
    """The one model there is."""
    return {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "headway"}]}


def _head(request: ChatRequest, found: Completion, trajectory_id: str, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{trajectory_id}-{found.number}",
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
        "system_fingerprint": f"policy-{found.turn.policy_version}",
    }


def _said(message: Message) -> dict[str, Any]:
    content = message["content"]
    return {**message, "content": content or (None if message.get("tool_calls") else "")}


def _usage(found: Completion) -> dict[str, Any]:
    turn = found.turn
    return {
        "prompt_tokens": turn.prompt_tokens,
        "completion_tokens": turn.sampled_tokens,
        "total_tokens": turn.prompt_tokens + turn.sampled_tokens,
        "prompt_tokens_details": {"cached_tokens": turn.cached_tokens},
    }


def _tool(tool: _Tool) -> Tool:
    function = tool.function.model_dump(exclude_none=True)
    function.setdefault("parameters", {"type": "object", "properties": {}})
    return {"type": "function", "function": function}


def _force(asked: Body, tools: list[Tool]) -> Force | None:
    choice = asked.tool_choice
    if choice in (None, "none", "auto"):
        return None
    names = [tool["function"]["name"] for tool in tools]
    if not names:
        raise bad("tool_choice", "there are no tools to choose from; send tools, or leave it out")
    if not isinstance(choice, _Named):
        return Force(names[0] if len(names) == 1 else None)
    if choice.function.name not in names:
        raise bad(
            "tool_choice",
            f"there is no tool {choice.function.name[:100]!r}; there are: {', '.join(names)[:500]}",
        )
    return Force(choice.function.name)


def _message(message: _Message, at: int) -> Message:
    content = message.content
    if isinstance(content, list):
        # Blocks are lines, as vLLM takes them where the model is served; what it said is one text again.
        content = ("" if message.role == "assistant" else "\n").join(part.text for part in content)
    found: Message = {
        "role": "system" if message.role == "developer" else message.role,
        "content": content or "",
    }
    if message.role == "tool":
        if message.tool_call_id is None:
            raise bad(f"messages.{at}.tool_call_id", "is missing: which call does this answer?")
        found["tool_call_id"] = message.tool_call_id
    if message.name:
        found["name"] = message.name
    if message.reasoning_content:
        found["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        if message.role != "assistant":
            raise bad(f"messages.{at}.tool_calls", "only an assistant's message has tool calls")
        found["tool_calls"] = [
            _call(call, f"messages.{at}.tool_calls.{n}") for n, call in enumerate(message.tool_calls)
        ]
    return found


def _call(call: _Call, at: str) -> dict[str, Any]:
    arguments = call.function.arguments
    if isinstance(arguments, str):
        try:
            arguments = json_within(arguments or "{}", bounds.ARGUMENTS)
        except OutOfBounds as error:
            raise bad(f"{at}.function.arguments", f"cannot be read: {error}") from error
        if not isinstance(arguments, dict):
            raise bad(f"{at}.function.arguments", "is not the JSON of an object")
    text = json.dumps(arguments, ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": text}}


def _require_text(body: dict[str, Any]) -> None:
    """Half a surrogate pair is valid JSON and no text: nothing that holds it could be stored or tokenized."""
    try:
        json.dumps([body["messages"], body.get("tools")], ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise bad("messages", f"cannot be written as text: {error}") from error


def _refuse(error: ValidationError) -> NoReturn:
    # Of the ways to read a field, the one that came furthest says best what is wrong with it.
    furthest = max(error.errors(include_url=False), key=lambda found: len(found["loc"]))
    path = ".".join(str(part) for part in furthest["loc"] if not _is_tag(part))
    if ".content." in path:
        raise bad(path, "only text can be shown to this model", "unsupported_content") from error
    raise bad(path or "body", f"{furthest['msg']} (got {_shown(furthest['input'])})") from error


def _shown(value: object) -> str:
    """A value in a message: what is long is not written out first."""
    if isinstance(value, list | dict):
        return f"{type(value).__name__} of {len(value)}"
    return repr(value[:100] if isinstance(value, str) else value)[:102]


def _is_tag(part: str | int) -> bool:
    """Whether a part of an error's path names an alternative of a union, and no field."""
    return isinstance(part, str) and (part == "str" or not part.isidentifier() or part.startswith("_"))
