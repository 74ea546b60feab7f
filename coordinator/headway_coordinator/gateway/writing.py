"""Writes a turn's answer as JSON. A thread writes an answer with many log-probabilities.

So other episodes can continue meanwhile.
"""

from __future__ import annotations

import asyncio
import json

from headway_coordinator.gateway.asks import Completion
from headway_coordinator.gateway.core import INLINE_TOKENS
from headway_coordinator.gateway.dialect import TurnRequest


async def document(asked: TurnRequest, found: Completion, trajectory_id: str) -> str:
    """The answer as JSON."""

    def in_pieces() -> str:  # `dumps` is one call, and other threads wait for its end
        return "".join(json.JSONEncoder().iterencode(asked.whole(found, trajectory_id)))

    if _is_long(found):
        return await asyncio.to_thread(in_pieces)
    return json.dumps(asked.whole(found, trajectory_id))


async def events(asked: TurnRequest, found: Completion, trajectory_id: str) -> bytes:
    """The answer as server-sent events."""
    made = asked.events(found, trajectory_id)
    return await asyncio.to_thread(b"".join, made) if _is_long(found) else b"".join(made)


def _is_long(found: Completion) -> bool:
    return len(found.scored) > INLINE_TOKENS
