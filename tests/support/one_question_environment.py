"""An environment whose question takes one tool call to answer. Tests copy this file to where
a sandbox finds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway_sandbox.environment import Environment, Observation, Reward, Transcript, tool, user

UNFINISHED = 0.25
"""Reward of an episode that did not end with the right answer."""


class OneQuestion(Environment):
    """Knows which metal a thing is made of."""

    def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        return Observation([user(row["prompt"])])

    @tool
    def look_up(self, key: str) -> str:
        """Look a thing up."""
        return f"{key} is gold"

    def reward(self, transcript: Transcript) -> Reward:
        right = "gold" in transcript.answer and bool(transcript.calls) and not transcript.truncated
        calls = {"calls": float(len(transcript.calls)), "unfinished": float(transcript.truncated)}
        return Reward(1.0 if right else UNFINISHED, calls)

    def score(self, transcript: Transcript) -> float:
        return float("gold" in transcript.answer)
