"""The first messages of the platform's own agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def opening(first: Sequence[dict[str, Any]], system_prompt: str | None) -> list[dict[str, Any]]:
    """The first messages; a system prompt from the spec replaces the environment's own."""
    if system_prompt is None:
        return list(first)
    rest = [message for message in first if message.get("role") != "system"]
    return [{"role": "system", "content": system_prompt}, *rest]
