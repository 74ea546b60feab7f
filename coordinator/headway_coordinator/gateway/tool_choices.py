"""Reads `tool_choice` of chat completions and of Responses: which tools a turn may or must call. Pure.

A turn may call every tool of the request, because its tokens are sampled freely. So a choice of only some
tools cannot be applied, unless it must call one named tool or allows all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, get_args

from pydantic import Field

from headway_api import bounds
from headway_coordinator.gateway.asks import Force
from headway_coordinator.gateway.blocks import Block
from headway_coordinator.gateway.refusals import UNSUPPORTED, bad
from headway_coordinator.trajectory.calls import Tool

ALLOWED: Final = "allowed_tools"
Word = Literal["auto", "none", "required", "any"]
"""`any` is the name that Mistral and Anthropic use for `required`."""
WORDS: Final[tuple[str, ...]] = get_args(Word)
Mode = Literal["auto", "required"]


class _Named(Block):
    name: str


class _Function(Block):
    type: Literal["function"]
    function: _Named


class _FlatFunction(Block):
    type: Literal["function"]
    name: str


class _Allowed(Block):
    """The value of `allowed_tools` in chat completions, which has the mode and the tools."""

    mode: Mode
    tools: Annotated[list[_Function], Field(max_length=bounds.TOOLS, fail_fast=True)]


class ChatChoice(Block):
    """A `tool_choice` of chat completions that is an object. Its type decides which fields it must have."""

    type: Literal["function", "allowed_tools", "auto", "none", "required", "any"]
    function: _Named | None = None
    allowed_tools: _Allowed | None = None


class ResponsesChoice(Block):
    """A `tool_choice` of the Responses API that is an object. Its type decides which fields it must have."""

    type: Literal["function", "allowed_tools", "auto", "none", "required", "any"]
    name: str | None = None
    mode: Mode | None = None
    tools: Annotated[list[_FlatFunction], Field(max_length=bounds.TOOLS, fail_fast=True)] | None = None


@dataclass(frozen=True)
class Choice:
    """Whether a turn may call tools, and which call it must begin with."""

    may_call: bool = True
    force: Force | None = None
    ignored: tuple[str, ...] = ()
    """The fields of `tool_choice` that are ignored."""


def of_chat(given: str | ChatChoice | None, tools: Sequence[Tool], *, lenient: bool) -> Choice:
    """The choice of a chat completion.

    Raises:
        GatewayError: a field is missing, the request has no such tool, or the choice cannot be applied.
    """
    if not isinstance(given, ChatChoice):
        return _word(given, tools)
    if given.type in WORDS:
        return _word(given.type, tools)
    if given.type == "function":
        if given.function is None:
            raise bad("tool_choice.function", "is missing; write the name of a tool in it")
        return Choice(force=force(given.function.name, tools))
    if given.allowed_tools is None:
        raise bad("tool_choice.allowed_tools", "is missing; write mode and tools in it")
    names = [one.function.name for one in given.allowed_tools.tools]
    return _some(given.allowed_tools.mode, names, tools, f"tool_choice.{ALLOWED}.tools", lenient)


def of_responses(given: str | ResponsesChoice | None, tools: Sequence[Tool], *, lenient: bool) -> Choice:
    """The choice of a request for a response. Raises the same errors as `of_chat`."""
    if not isinstance(given, ResponsesChoice):
        return _word(given, tools)
    if given.type in WORDS:
        return _word(given.type, tools)
    if given.type == "function":
        if given.name is None:
            raise bad("tool_choice.name", "is missing; write the name of a tool")
        return Choice(force=force(given.name, tools))
    if given.mode is None:
        raise bad("tool_choice.mode", "is missing; write auto or required")
    if given.tools is None:
        raise bad("tool_choice.tools", "is missing; list the tools that the model may call")
    return _some(given.mode, [one.name for one in given.tools], tools, "tool_choice.tools", lenient)


def force(name: str | None, tools: Sequence[Tool]) -> Force:
    """The forced call of the tool `name`, or of any tool if `name` is None.

    Raises:
        GatewayError: the request has no such tool, or no tools.
    """
    names = _offered(tools)
    if name is None:
        return Force(names[0] if len(names) == 1 else None)
    _require(name, names, "tool_choice")
    return Force(name)


def _word(given: str | None, tools: Sequence[Tool]) -> Choice:
    must = given in ("required", "any")
    return Choice(may_call=given != "none", force=force(None, tools) if must else None)


def _some(mode: Mode, allowed: Sequence[str], tools: Sequence[Tool], at: str, lenient: bool) -> Choice:
    """A choice of the tools in `allowed`.

    It is the same as `mode` if these are all tools of the request. If one tool is required, it is forced.
    """
    offered = _offered(tools)
    if not allowed:
        raise bad(at, 'names no tool; write tool_choice: "none"')
    for number, name in enumerate(allowed):
        _require(name, offered, f"{at}.{number}")
    whole, must = set(allowed) == set(offered), mode == "required"
    if must and len(set(allowed)) == 1:
        return Choice(force=force(allowed[0], tools))
    if not whole and not lenient:
        message = f'a turn may call all tools of the request; send only these, or write tool_choice: "{mode}"'
        raise bad(at, f"names some tools, and {message}", UNSUPPORTED)
    return Choice(force=force(None, tools) if must else None, ignored=() if whole else (at,))


def _offered(tools: Sequence[Tool]) -> list[str]:
    names = [tool["function"]["name"] for tool in tools]
    if not names:
        raise bad("tool_choice", "there are no tools to choose from; send tools, or leave it out")
    return names


def _require(name: str, offered: Sequence[str], at: str) -> None:
    if name not in offered:
        raise bad(at, f"there is no tool {name[:100]!r}; there are: {', '.join(offered)[:500]}")
