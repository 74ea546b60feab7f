"""A turn with reasoning, text and two parallel calls, which each protocol of the gateway has to express."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from episodes import version

from headway_api.records import Turn
from headway_coordinator.gateway.asks import Completion


def answered(**fields: Any) -> Completion:
    """The turn. `fields` replace its own."""
    function = {"name": "look_up", "arguments": '{"key": "x"}'}
    calls = [{"id": f"call-0-{i}", "type": "function", "function": function} for i in (0, 1)]
    message = {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": calls}
    turn = Turn(
        index=0,
        prompt_tokens=10,
        cached_tokens=4,
        sampled_tokens=3,
        finish_reason="stop",
        policy_version=version(5),
    )
    return replace(Completion(0, message, [], "tool_calls", turn, 1), **fields)
