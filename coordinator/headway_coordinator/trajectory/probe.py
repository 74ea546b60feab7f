"""The probe: messages and tools of the test conversations that `proof.py` renders and parses."""

from __future__ import annotations

import json
from typing import Any, Final

from headway_coordinator.trajectory.calls import Message, Tool

_PROPERTIES: Final[dict[str, Any]] = {
    "key": {"type": "string", "description": "Name of the thing"},
    "count": {"type": "integer", "description": "Most to find"},
    "share": {"type": "number", "description": "Least of them"},
    "exact": {"type": "boolean", "description": "No other name"},
    "tags": {"type": "array", "items": {"type": "string"}, "description": "All of these"},
    "where": {"type": "object", "properties": {"row": {"type": "integer"}}, "description": "Place"},
    "empty": {"type": "null", "description": "Nothing"},
}


def _tool(name: str, *parameters: str) -> Tool:
    properties = {key: _PROPERTIES[key] for key in parameters}
    schema = {"type": "object", "properties": properties, "required": ["key"]}
    return {
        "type": "function",
        "function": {"name": name, "description": "Look a thing up.", "parameters": schema},
    }


SIMPLE: Final = [_tool("look_up", "key"), _tool("count_up", "key")]
EVERY: Final = [_tool("look_up", *_PROPERTIES)]
ASKED: Final[list[Message]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Look up brave-otter."},
]
KEY: Final = {"key": "brave-otter"}
OTHER_KEY: Final = {"key": "calm-heron"}
VALUES: Final[dict[str, Any]] = {
    "key": "7",
    "count": 3,
    "share": 0.5,
    "exact": True,
    "tags": ["a", "b"],
    "where": {"row": 1},
    "empty": None,
}
SPECIAL_CHARACTERS: Final = {"key": 'Zoë said "≥ 7" — 水 😀\nand {more}, [too] \\ <b>'}
WHY: Final = "The otter is the key."
WHY_GOLD: Final = "The tier says it."
RESULT: Final[Message] = {
    "role": "tool",
    "tool_call_id": "call-0-0",
    "name": "look_up",
    "content": '{"tier": "gold"}',
}
SECOND_RESULT: Final[Message] = {
    "role": "tool",
    "tool_call_id": "call-0-1",
    "name": "count_up",
    "content": '{"tier": "silver"}',
}
ANSWER: Final[Message] = {"role": "assistant", "content": "Gold it is."}
ASKED_AGAIN: Final[Message] = {"role": "user", "content": "And calm-heron?"}


def call(arguments: dict[str, Any], name: str = "look_up", index: int = 0) -> dict[str, Any]:
    """A tool call in OpenAI's form."""
    text = json.dumps(arguments, ensure_ascii=False)
    return {
        "id": f"call-0-{index}",
        "type": "function",
        "function": {"name": name, "arguments": text},
    }


def calling(*calls: dict[str, Any], content: str = "", reasoning: str = "") -> Message:
    """An assistant turn that calls tools."""
    message: Message = {"role": "assistant", "content": content, "tool_calls": list(calls)}
    return message | {"reasoning_content": reasoning} if reasoning else message
