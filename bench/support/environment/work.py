"""An environment whose tool sleeps for the seconds in its call. Standard library only, like any
environment."""

from __future__ import annotations

import time
import zlib

from headway_sandbox.environment import Environment, Observation, system, tool, user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headway_sandbox.environment import Transcript


class Work(Environment):
    """An environment with a pseudo-random reward, so that the episodes of a group differ."""

    def reset(self, row: dict[str, Any], seed: int) -> Observation:
        return Observation([system("Work the case off, then answer in one line."), user(row["prompt"])])

    @tool
    def work(self, seconds: float) -> dict[str, Any]:
        """Do a piece of work."""
        time.sleep(seconds)
        return {"done": True, "tier": "gold", "reason": "late", "item": "lamp"}

    def reward(self, transcript: Transcript) -> float:
        return zlib.crc32(transcript.answer.encode()) % 1000 / 1000

    def score(self, transcript: Transcript) -> float:
        return 0.0
