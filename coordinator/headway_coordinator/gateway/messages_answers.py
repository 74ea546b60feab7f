"""Writes a turn's answer for Anthropic's clients: one message, or the events of a stream. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from headway_coordinator.gateway.asks import Completion

REASONS: Final = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
"""OpenAI's `finish_reason` -> Anthropic's `stop_reason`."""
DELTAS: Final = {
    "text": ("text", "text_delta", "text"),
    "thinking": ("thinking", "thinking_delta", "thinking"),
    "tool_use": ("input", "input_json_delta", "partial_json"),
}
"""Type of a block -> the field that is streamed, the type of its delta, and the delta's field."""


def message(found: Completion, model: str, trajectory_id: str, shows_reasoning: bool) -> dict[str, Any]:
    """The answer as one document.

    Args:
        found: the turn.
        model: the client's name for the model.
        trajectory_id: the episode's id.
        shows_reasoning: whether the answer shows the model's reasoning.
    """
    stopped = found.stopped is not None and found.finish_reason == "stop"
    return {
        "id": f"msg_{trajectory_id}-{found.number}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": list(_blocks(found, shows_reasoning)),
        "stop_reason": "stop_sequence" if stopped else REASONS[found.finish_reason],
        "stop_sequence": found.stopped if stopped else None,
        "usage": _usage(found),
    }


def events(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a stream with the same content as the message `whole`."""
    begun: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
    usage = whole["usage"]
    yield {"type": "message_start", "message": whole | begun | {"usage": usage | {"output_tokens": 0}}}
    for index, block in enumerate(whole["content"]):
        field, kind, name = DELTAS[block["type"]]
        piece: Any = block[field]
        empty: Any = ""
        if not isinstance(piece, str):
            piece, empty = json.dumps(piece, ensure_ascii=False), {}
        yield {"type": "content_block_start", "index": index, "content_block": block | {field: empty}}
        yield {"type": "content_block_delta", "index": index, "delta": {"type": kind, name: piece}}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
    yield {"type": "message_delta", "delta": ended, "usage": usage}
    yield {"type": "message_stop"}


def _blocks(found: Completion, shows_reasoning: bool) -> Iterator[dict[str, Any]]:
    message = found.message
    if shows_reasoning and message.get("reasoning_content"):
        yield {"type": "thinking", "thinking": message["reasoning_content"], "signature": ""}
    if message["content"]:
        yield {"type": "text", "text": message["content"]}
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = json.loads(function["arguments"])
        yield {"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments}


def _usage(found: Completion) -> dict[str, int]:
    """Usage in Anthropic's form, whose `input_tokens` exclude cached tokens."""
    turn = found.turn
    return {
        "input_tokens": turn.prompt_tokens - turn.cached_tokens,
        "cache_read_input_tokens": turn.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": turn.sampled_tokens,
    }
