"""Writes a turn's answer in the form of OpenAI's Responses: one document, or the events of a stream. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from headway_coordinator.gateway.asks import Completion

INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""`finish_reason` of chat completions -> the reason in `incomplete_details` of Responses."""
ID: Final = "resp_{trajectory_id}-{node}"
"""The id of an answer. A later request sends it to continue the answer's conversation."""


def response_id(trajectory_id: str, node: int) -> str:
    """The id of the answer that `node` of the episode's graph holds."""
    return ID.format(trajectory_id=trajectory_id, node=node)


def response(found: Completion, trajectory_id: str, echoed: dict[str, Any]) -> dict[str, Any]:
    """The answer as one document.

    Args:
        found: the turn.
        trajectory_id: the episode's id.
        echoed: the fields of the request that the answer repeats.
    """
    why = INCOMPLETE.get(found.finish_reason)
    whole = {
        "id": response_id(trajectory_id, found.node),
        "object": "response",
        "created_at": int(time.time()),
        "status": "completed" if why is None else "incomplete",
        "error": None,
        "incomplete_details": None if why is None else {"reason": why},
        "metadata": {},
        "output": list(_items(found, trajectory_id)),
        "parallel_tool_calls": True,
        "temperature": None,
        "top_p": None,
        "text": {"format": {"type": "text"}},
        "usage": _usage(found),
    }
    return whole | echoed


def events(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a stream with the same content as the answer `whole`."""
    begun = whole | {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(whole["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        nothing: dict[str, Any] = {"content": []} if "content" in item else {"arguments": ""}
        empty = item | nothing | {"status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": index, "item": empty}
        if item["type"] == "function_call":
            name, text = "response.function_call_arguments", item["arguments"]
            yield at | {"type": f"{name}.delta", "delta": text}
            yield at | {"type": f"{name}.done", "arguments": text, "name": item["name"]}
        else:
            yield from _part(item["content"][0], at | {"content_index": 0})
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{whole['status']}", "response": whole}


def _part(part: dict[str, Any], at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events for one content part, a text."""
    name = f"response.{part['type']}"
    scored: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
    yield at | {"type": "response.content_part.added", "part": part | {"text": ""}}
    if part["text"]:
        yield at | scored | {"type": f"{name}.delta", "delta": part["text"]}
    yield at | scored | {"type": f"{name}.done", "text": part["text"]}
    yield at | {"type": "response.content_part.done", "part": part}


def _items(found: Completion, trajectory_id: str) -> Iterator[dict[str, Any]]:
    message, own = found.message, f"{trajectory_id}-{found.node}"
    calls, done = message.get("tool_calls") or [], {"status": "completed"}
    if reasoning := message.get("reasoning_content"):
        content = [{"type": "reasoning_text", "text": reasoning}]
        yield {"type": "reasoning", "id": f"rs_{own}", "summary": [], "content": content} | done
    if message["content"] or not calls:
        text = {"type": "output_text", "text": message["content"], "annotations": [], "logprobs": []}
        yield {"type": "message", "id": f"msg_{own}", "role": "assistant", "content": [text]} | done
    for index, call in enumerate(calls):
        yield {
            "type": "function_call",
            "id": f"fc_{own}-{index}",
            "call_id": call["id"],
            **call["function"],
            **done,
        }


def _usage(found: Completion) -> dict[str, Any]:
    """The token counts of the turn. Tokens of reasoning are not counted separately."""
    turn = found.turn
    return {
        "input_tokens": turn.prompt_tokens,
        "input_tokens_details": {"cached_tokens": turn.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": turn.sampled_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": turn.prompt_tokens + turn.sampled_tokens,
    }
