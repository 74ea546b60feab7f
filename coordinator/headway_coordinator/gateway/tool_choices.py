"""Which tools a turn may or must call: `tool_choice` of chat completions and of Responses. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headway_coordinator.gateway.asks import Force
from headway_coordinator.gateway.blocks import Block
from headway_coordinator.gateway.refusals import bad
from headway_coordinator.trajectory.calls import Tool


class _Named(Block):
    name: str


class ChatChoice(Block):
    """A choice of chat completions that is more than a word."""

    type: Literal["function"]
    function: _Named


class ResponsesChoice(Block):
    """A choice of Responses that is more than a word."""

    type: Literal["function"]
    name: str


@dataclass(frozen=True)
class Choice:
    """What a turn may or must call."""

    may_call: bool = True
    force: Force | None = None


def of_chat(given: str | ChatChoice | None, tools: Sequence[Tool]) -> Choice:
    """The choice of a chat completion.

    Raises:
        GatewayError: there is no such tool.
    """
    if isinstance(given, ChatChoice):
        return Choice(force=force(given.function.name, tools))
    return _word(given, tools)


def of_responses(given: str | ResponsesChoice | None, tools: Sequence[Tool]) -> Choice:
    """The choice of a request for a response. Raises the same errors as `of_chat`."""
    if isinstance(given, ResponsesChoice):
        return Choice(force=force(given.name, tools))
    return _word(given, tools)


def force(name: str | None, tools: Sequence[Tool]) -> Force:
    """A turn that must call the named tool; None: any tool.

    Raises:
        GatewayError: there is no such tool.
    """
    names = _offered(tools)
    if name is None:
        return Force(names[0] if len(names) == 1 else None)
    _require(name, names, "tool_choice")
    return Force(name)


def _word(given: str | None, tools: Sequence[Tool]) -> Choice:
    must = given in ("required", "any")
    return Choice(may_call=given != "none", force=force(None, tools) if must else None)


def _offered(tools: Sequence[Tool]) -> list[str]:
    names = [tool["function"]["name"] for tool in tools]
    if not names:
        raise bad("tool_choice", "there are no tools to choose from; send tools, or leave it out")
    return names


def _require(name: str, offered: Sequence[str], at: str) -> None:
    if name not in offered:
        raise bad(at, f"there is no tool {name[:100]!r}; there are: {', '.join(offered)[:500]}")
