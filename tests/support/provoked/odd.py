"""Environments with a fault each. Mounted beside the example's environment, in pods of its image."""

from __future__ import annotations

import time

from environment import RefundDesk  # type: ignore[import-not-found]


class Flat(RefundDesk):  # type: ignore[misc]
    """Has the same reward for everything."""

    def reward(self, transcript: object) -> float:
        return 0.5

    def score(self, transcript: object) -> float:
        return 0.0


class Unready(RefundDesk):  # type: ignore[misc]
    """Cannot begin an episode."""

    def reset(self, row: object, seed: int) -> object:
        raise KeyError("shop")


class Unjust(RefundDesk):  # type: ignore[misc]
    """Cannot judge an episode."""

    def reward(self, transcript: object) -> float:
        raise ZeroDivisionError("no fields to judge")


class Endless(RefundDesk):  # type: ignore[misc]
    """Never ends an episode."""

    def reset(self, row: object, seed: int) -> object:
        time.sleep(3600)
        return super().reset(row, seed)


class NotANumber(RefundDesk):  # type: ignore[misc]
    """Judges with what is no number."""

    def reward(self, transcript: object) -> float:
        return float("nan")
