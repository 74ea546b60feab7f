"""Messages and tools of chat completions: their types, and their form for the chat template. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from headway_api import bounds
from headway_api.bounds import OutOfBoundsError, json_within
from headway_coordinator.gateway.blocks import LEAVE_OUT, Block, Unread
from headway_coordinator.gateway.refusals import bad
from headway_coordinator.gateway.unapplied import PROMPTED
from headway_coordinator.trajectory.calls import Message, Tool

TEXT_ALONE: Final = "this gateway accepts only text; leave it out"
CONTINUED: Final = f"every turn begins a message of its own; {LEAVE_OUT}"
TEXTS: Final = ("text", "input_text", "output_text")
"""Types of parts that are text. vLLM accepts the types of Responses in chat completions, too."""


# Every list has `fail_fast`: even if a million entries are wrong, validation stops at the first.
class _Function(Block):
    UNREAD = Unread(listed={"defer_loading": (None, False)}, inert=("strict",))

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ChatTool(Block):
    """A tool that the model may call."""

    UNREAD = Unread(listed={"defer_loading": (None, False)}, inert=("cache_control",))

    type: Literal["function"]
    function: _Function


class _Called(Block):
    name: str = Field(min_length=1)
    arguments: str | dict[str, Any]


class _Call(Block):
    UNREAD = Unread(inert=("index",))

    id: str | None = None
    type: Literal["function"] = "function"
    function: _Called


class _ThoughtText(Block):
    type: Literal["text"]
    text: str


_ThoughtTexts = Annotated[list[_ThoughtText], Field(max_length=bounds.MESSAGES, fail_fast=True)]


class _Part(Block):
    """A part of a message. Its type decides which field it must have."""

    UNREAD = Unread(
        listed={"citations": (None, []), "annotations": (None, [])},
        inert=("cache_control", "prompt_cache_breakpoint", "signature", "closed", "id", "index", "uuid"),
        reads={
            **dict.fromkeys(("text", "input_text", "output_text"), ("text",)),
            "refusal": ("refusal",),
            **dict.fromkeys(("thinking", "reasoning"), ("thinking", "reasoning", "text")),
        },
    )

    type: Literal["text", "input_text", "output_text", "refusal", "thinking", "reasoning"]
    text: str | None = None
    refusal: str | None = None
    """The model's refusal to answer."""
    thinking: str | _ThoughtTexts | None = None
    """Reasoning as a string, as vLLM and SGLang write it, or in parts, as Mistral writes it."""
    reasoning: str | None = None
    """Reasoning, under the name that LangChain uses."""


class ChatMessage(Block):
    """A message of the conversation."""

    UNREAD = Unread(
        refused={
            "prefix": (None, False),
            "partial": (None, False),
            "images": (None, []),
            "audio": (None,),
            "tools": (None, []),
            "task": (None,),
        },
        listed={
            "annotations": (None, []),
            # Fields of gpt-oss's messages. Its chat template writes them itself.
            **dict.fromkeys(("author", "channel", "recipient", "content_type"), (None,)),
        },
        inert=("cache_control",),
        why={
            **dict.fromkeys(("prefix", "partial"), CONTINUED),
            **dict.fromkeys(("images", "audio"), TEXT_ALONE),
            "tools": "write them into the request's own tools",
            "task": PROMPTED,
        },
        kind="role",
        reads={"assistant": ("reasoning_content", "reasoning"), "tool": ("tool_call_id",)},
    )

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[_Part], Field(max_length=bounds.MESSAGES, fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[_Call], Field(max_length=bounds.TOOLS, fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """Another name of `reasoning_content`, which newer servers write into their answers."""
    refusal: str | None = None
    """The model's refusal to answer."""
    function_call: Any = None
    """The old way to call a tool, which is not supported."""


def message(given: ChatMessage, at: int) -> Message:
    """A message in the form that the chat template takes. `at` is its position in the request.

    Raises:
        GatewayError: a field is missing, or only another role may have it.
    """
    where = f"messages.{at}"
    text, thoughts = given.content or "", ""
    if isinstance(text, list):
        text, thoughts = _joined(text, given.role, where)
    if given.refusal:
        text = _refusal(given, text, where)
    found: Message = {"role": "system" if given.role == "developer" else given.role, "content": text}
    if given.function_call is not None:
        raise bad(f"{where}.function_call", "is the old way to call a tool; write tool_calls")
    if given.role == "tool":
        if given.tool_call_id is None:
            raise bad(
                f"{where}.tool_call_id",
                "is missing; write the id of the tool call that this message answers",
            )
        found["tool_call_id"] = given.tool_call_id
    if given.name:
        found["name"] = given.name
    if given.reasoning_content or given.reasoning or thoughts:
        found["reasoning_content"] = _reasoning(given, thoughts, where)
    if given.tool_calls:
        if given.role != "assistant":
            raise bad(f"{where}.tool_calls", "only an assistant's message has tool calls")
        found["tool_calls"] = [
            _call(call, f"{where}.tool_calls.{n}") for n, call in enumerate(given.tool_calls)
        ]
    return found


def output(texts: Sequence[str], reasoning: Sequence[str], calls: Sequence[dict[str, Any]]) -> Message:
    """An assistant message, joined from its texts, reasoning and tool calls."""
    found: Message = {"role": "assistant", "content": "".join(texts)}
    if reasoning:
        found["reasoning_content"] = "".join(reasoning)
    if calls:
        found["tool_calls"] = list(calls)
    return found


def tool(given: ChatTool) -> Tool:
    """A tool in the form that the chat template takes."""
    function: dict[str, Any] = {"name": given.function.name}
    if given.function.description is not None:
        function["description"] = given.function.description
    nothing = {"type": "object", "properties": {}}
    parameters = given.function.parameters
    function["parameters"] = nothing if parameters is None else parameters
    return {"type": "function", "function": function}


def arguments(given: str | dict[str, Any], at: str) -> str:
    """A call's arguments as canonical JSON.

    Raises:
        GatewayError: the field `at` is not a JSON object.
    """
    if isinstance(given, str):
        try:
            given = json_within(given or "{}", bounds.ARGUMENTS, values=bounds.ANSWER_VALUES)
        except OutOfBoundsError as error:
            raise bad(at, f"cannot be read: {error}") from error
        if not isinstance(given, dict):
            raise bad(at, "is not a JSON object")
    return json.dumps(given, ensure_ascii=False)


def _joined(parts: Sequence[_Part], role: str, where: str) -> tuple[str, str]:
    """The text of a message's parts, and their reasoning."""
    texts: list[str] = []
    thoughts: list[str] = []
    for number, part in enumerate(parts):
        if part.type == "text" and part.text is not None:
            texts.append(part.text)
        else:
            _read(part, role, texts, thoughts, f"{where}.content.{number}")
    # Text parts become lines, as in vLLM. An assistant's parts were sampled as one text, so none is added.
    return ("" if role == "assistant" else "\n").join(texts), "".join(thoughts)


def _read(part: _Part, role: str, texts: list[str], thoughts: list[str], where: str) -> None:
    """Add a part's text to `texts`, or its reasoning to `thoughts`."""
    if part.type in TEXTS:
        texts.append(_required(part.text, f"{where}.text"))
    elif role != "assistant":
        raise bad(
            f"{where}.type",
            f"only an assistant's message has a {part.type} part; send content of type text",
            "unsupported_content",
        )
    elif part.type == "refusal":
        texts.append(_required(part.refusal, f"{where}.refusal"))
    else:
        given = next((one for one in (part.thinking, part.reasoning, part.text) if one is not None), None)
        whole = "".join(one.text for one in given) if isinstance(given, list) else given
        thoughts.append(_required(whole, f"{where}.{part.type}"))


def _refusal(given: ChatMessage, text: str, where: str) -> str:
    """The text of the model's refusal to answer."""
    if given.role != "assistant":
        raise bad(f"{where}.refusal", "only an assistant's message has a refusal; write content")
    if text:
        raise bad(f"{where}.refusal", "was sent together with content; send one of them")
    return given.refusal or ""


def _reasoning(given: ChatMessage, thoughts: str, where: str) -> str:
    """The reasoning of a message, from whichever field has it. Fields that disagree are an error."""
    found = {
        "reasoning_content": given.reasoning_content,
        "reasoning": given.reasoning,
        "content": thoughts,
    }
    sent = [(name, value) for name, value in found.items() if value]
    for name, value in sent[1:]:
        if value != sent[0][1]:
            raise bad(f"{where}.{name}", f"has other reasoning than {sent[0][0]}; send one of them")
    return sent[0][1]


def _call(call: _Call, at: str) -> dict[str, Any]:
    text = arguments(call.function.arguments, f"{at}.function.arguments")
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": text}}


def _required(value: str | None, at: str) -> str:
    if value is None:
        raise bad(at, "is missing")
    return value
