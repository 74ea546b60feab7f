"""Environments with one fault each. The file is mounted beside the example's environment in its pods."""

from __future__ import annotations

import random
import time

from environment import RefundDesk  # type: ignore[import-not-found]

from headway_sandbox.environment import Observation, Transcript, tool

FOR_EVER_S = 3600
SHARE = 0.3


class Flat(RefundDesk):  # type: ignore[misc]
    """Gives every episode the same reward."""

    def reward(self, transcript: Transcript) -> float:
        return 0.5

    def score(self, transcript: Transcript) -> float:
        return 0.0


class Unready(RefundDesk):  # type: ignore[misc]
    """Cannot begin an episode."""

    def reset(self, row: object, seed: int) -> Observation:
        raise KeyError("shop")


class Unjust(RefundDesk):  # type: ignore[misc]
    """Cannot judge any episode."""

    def reward(self, transcript: Transcript) -> float:
        raise ZeroDivisionError("no fields to judge")


class NotANumber(RefundDesk):  # type: ignore[misc]
    """Returns NaN as the reward."""

    def reward(self, transcript: Transcript) -> float:
        return float("nan")


class UnjustOnceCalled(RefundDesk):  # type: ignore[misc]
    """Cannot judge an episode in which a tool was called. The preflight's episode calls none."""

    def reward(self, transcript: Transcript) -> float:
        if transcript.calls:
            raise ZeroDivisionError(f"no price of {transcript.calls[0].name}")
        return 0.0


class Hanging(RefundDesk):  # type: ignore[misc]
    """Has a tool that never returns."""

    @tool
    def get_case(self, case_id: str) -> dict[str, str]:
        """Tier, reason and item."""
        time.sleep(FOR_EVER_S)
        return {}


class HangingAtTimes(RefundDesk):  # type: ignore[misc]
    """Has a tool that never returns in about a third of its calls."""

    @tool
    def get_case(self, case_id: str) -> dict[str, str]:
        """Tier, reason and item."""
        if random.random() < SHARE:
            time.sleep(FOR_EVER_S)
        return super().get_case(case_id)  # type: ignore[no-any-return]
