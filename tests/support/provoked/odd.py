"""Environments with a fault each. Mounted beside the example's environment, in pods of its image."""

from __future__ import annotations

from environment import RefundDesk  # type: ignore[import-not-found]

from headway_sandbox.environment import Observation, Transcript


class Unready(RefundDesk):  # type: ignore[misc]
    """Cannot begin an episode."""

    def reset(self, row: object, seed: int) -> Observation:
        raise KeyError("shop")


class Unjust(RefundDesk):  # type: ignore[misc]
    """Cannot judge any episode."""

    def reward(self, transcript: Transcript) -> float:
        raise ZeroDivisionError("no fields to judge")


class NotANumber(RefundDesk):  # type: ignore[misc]
    """Judges with what is no number."""

    def reward(self, transcript: Transcript) -> float:
        return float("nan")
