"""What a sampled turn says: its text, and the tool calls in it, the unreadable ones included.

A model may write anything, and while it collapses it does. Whatever the text, reading it never fails: what
cannot be carried out, or could not be written down again as JSON, is a call with a `problem`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
Tool = dict[str, Any]

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class Call:
    """A tool call as the model wrote it."""

    raw: str
    """The text between the call's tags, as sampled."""
    name: str | None
    arguments: dict[str, Any] | None
    problem: str | None = None
    """Why it cannot be carried out; None where it can."""


@dataclass(frozen=True)
class Parsed:
    """What a sampled turn says."""

    content: str
    reasoning: str | None = None
    calls: list[Call] = field(default_factory=list)


def read(
    inner: Any, tokenizer: Any, sampled: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]
) -> Parsed:
    """Read a turn with a renderer of the `renderers` package."""
    try:
        response = inner.parse_response(list(sampled), tools=list(tools) or None, prompt_ids=list(prompt))
    except (ValueError, RecursionError) as error:  # brackets without end, a number of thousands of digits
        return _unreadable(str(tokenizer.decode(list(sampled), skip_special_tokens=True)), error)
    return Parsed(
        content=response.content,
        reasoning=response.reasoning_content,
        calls=[_call(call) for call in response.tool_calls],
    )


def _unreadable(text: str, error: Exception) -> Parsed:
    """All from the first opening tag on as one call that nobody can read."""
    content, tag, rest = text.partition(OPEN)
    raw = rest.removesuffix("\n").removesuffix(CLOSE) if tag else text
    problem = f"{type(error).__name__}: {error}"
    return Parsed(content=content if tag else "", calls=[Call(raw, None, None, problem)])


def _call(call: Any) -> Call:
    arguments, problem = call.arguments, None
    if str(call.status) != "ok":
        problem = str(call.status).replace("_", " ")
    elif isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            problem = f"arguments are not JSON: {error}"
    problem = problem or _unusable(call.name, arguments)
    return Call(raw=call.raw, name=call.name, arguments=None if problem else arguments, problem=problem)


def _unusable(name: object, arguments: object) -> str | None:
    if not isinstance(name, str):
        return "the name is not a string"
    if not isinstance(arguments, dict):
        return "arguments are not an object"
    try:
        # JSON's escapes can spell half a character, and Python's reader takes NaN: neither goes any further.
        json.dumps([name, arguments], ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        return f"it cannot be written as JSON: {error}"
    return None
