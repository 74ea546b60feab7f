"""What a model's own chat template says of a conversation, as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from headway_coordinator.trajectory.calls import Message, Tool

TODAY = datetime(2024, 7, 26)
"""The day that templates which state it are told: a prompt must not depend on when it is rendered."""


def inlined(thought: str, content: str) -> str:
    """A turn as one text, its thought within: what a client holds that is not told them apart."""
    return f"<think>\n{thought}\n</think>\n\n{content}"


def template_text(
    tokenizer: Any, messages: Sequence[Message], tools: Sequence[Tool], *, generate: bool
) -> str:
    """A conversation by the model's own chat template, call arguments given as objects."""
    return str(
        tokenizer.apply_chat_template(
            [_with_object_arguments(message) for message in messages],
            tools=list(tools) or None,
            add_generation_prompt=generate,
            tokenize=False,
            strftime_now=TODAY.strftime,
        )
    )


def decoded(tokenizer: Any, ids: list[int]) -> str:
    """Ids as text, special tokens included, nothing tidied."""
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _with_object_arguments(message: Message) -> Message:
    """Templates write an object as JSON, and a string in quotes: give them objects."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {
        **message,
        "tool_calls": [{**call, "function": _object_arguments(call["function"])} for call in calls],
    }


def _object_arguments(function: dict[str, Any]) -> dict[str, Any]:
    arguments = function["arguments"]
    return {**function, "arguments": json.loads(arguments) if isinstance(arguments, str) else arguments}
