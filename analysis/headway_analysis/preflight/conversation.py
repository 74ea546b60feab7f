"""The texts of an episode: its prompt, its answer, its tool calls."""

from __future__ import annotations

import difflib
import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from headway_analysis.measures.tries import sampled_messages, text_of
from headway_analysis.preflight.evidence import Call, Sampled, ToolResult
from headway_api.bounds import shortened
from headway_api.document import JsonView

LINES: Final = 40
"""The most lines of an example."""
WIDTH: Final = 200
"""Maximum characters of a line."""


def prompt_messages(one: Sampled) -> list[JsonView]:
    """The messages that the model received before its first turn."""
    sampled = sampled_messages(one.record)
    if not sampled:
        return list(one.record.messages)
    begin = next(at for at, message in enumerate(one.record.messages) if message is sampled[0])
    return list(one.record.messages[:begin])


def prompt_text(one: Sampled) -> str:
    """The messages that the model received before its first turn, as one text."""
    return "\n".join(text_of(message) for message in prompt_messages(one))


def answer_of(one: Sampled) -> str | None:
    """The text of the message with which the model ended the episode; None if the episode ended otherwise."""
    last = one.record.messages[-1] if one.record.messages else {}
    if last.get("role") != "assistant" or last.get("tool_calls") or not sampled_messages(one.record):
        return None
    return text_of(last)


def ending_call(one: Sampled) -> ToolResult | None:
    """The tool call that ended the episode; None if no call did."""
    return one.results[-1] if one.results and one.results[-1].done else None


def model_answer(one: Sampled) -> str | None:
    """The model's answer: its last message, or the arguments of the call that ended the episode, as JSON."""
    ending = ending_call(one)
    return answer_of(one) if ending is None else json.dumps(dict(ending.arguments), ensure_ascii=False)


def calls_of(one: Sampled) -> tuple[Call, ...]:
    """The episode's tool calls, as they were executed."""
    return tuple(Call(result.name, result.arguments) for result in one.results)


def tool_names(tools: Iterable[JsonView]) -> list[str]:
    """Names of the tools that an environment offers."""
    return [str(function_of(tool).get("name", "")) for tool in tools]


def function_of(tool: JsonView) -> JsonView:
    """The `function` object of a tool's OpenAI spec."""
    found = tool.get("function", tool)
    return found if isinstance(found, Mapping) else {}


def parameters_of(tool: JsonView) -> JsonView:
    """The JSON schema of a tool's arguments."""
    found = function_of(tool).get("parameters")
    return found if isinstance(found, Mapping) else {}


def properties_of(schema: JsonView) -> JsonView:
    """Parameter -> its schema, from a JSON schema; empty if the schema is malformed."""
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def folded(text: str) -> str:
    """A text without differences of case, width and white space. Signs stay, because -1 is not 1."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def written(value: Any) -> str:
    """A value as JSON text, which does not depend on the order of its keys."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def excerpt(text: str, lines: int = LINES) -> str:
    """A text as evidence shows it: at most `lines` lines of at most `WIDTH` characters."""
    found = text.splitlines()
    cut = [shortened(line, WIDTH) for line in found[:lines]]
    return "\n".join([*cut, f"({len(found) - lines} lines more)"] if len(found) > lines else cut)


def difference(first: str, second: str, names: tuple[str, str]) -> str:
    """A unified diff, as evidence shows it."""
    # Long lines are compared in pieces: difflib's time grows with the square of their length.
    before, after = (_pieces(text) for text in (first, second))
    return excerpt("\n".join(difflib.unified_diff(before, after, *names, lineterm="", n=1)))


def _pieces(text: str, limit: int = 400) -> list[str]:
    lines = [line[at : at + WIDTH] for line in text.splitlines() for at in range(0, max(1, len(line)), WIDTH)]
    return lines[:limit]


def results_text(calls: Sequence[ToolResult]) -> str:
    """Tool calls with their results, one line for each call."""
    return "\n".join(f"{call.name}({written(dict(call.arguments))}) -> {call.content}" for call in calls)
