"""Faults of the quickstart's refund desk, one a class: its tiny model knows that desk alone."""

from __future__ import annotations

import random

from environment import FIELDS, RefundDesk, expected_answer, parse_answer

from headway_sandbox.environment import Reward

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from headway_sandbox.environment import Observation, Transcript


class AnywhereInTheText(RefundDesk):
    """Reward and score look for each value anywhere in the answer."""

    def share(self, transcript: Transcript) -> float:
        expected = expected_answer(self.case_id).values()
        return sum(value in transcript.answer for value in expected) / len(FIELDS)

    def reward(self, transcript: Transcript) -> float:
        return self.share(transcript)

    def score(self, transcript: Transcript) -> float:
        return float(self.share(transcript) == 1.0)


class FullForForm(RefundDesk):
    """The reward pays every well-formed answer in full."""

    def reward(self, transcript: Transcript) -> float:
        return float(parse_answer(transcript.answer) is not None)


class PaysCalls(RefundDesk):
    """The reward grows with the number of tool calls."""

    def reward(self, transcript: Transcript) -> float:
        return min(1.0, len(transcript.calls) / 3)


class Uniform(RefundDesk):
    """Every episode is worth the same."""

    def reward(self, transcript: Transcript) -> float:
        return 0.5


class ToFive(RefundDesk):
    """The reward goes to 5, and the job says that it goes to 1."""

    def reward(self, transcript: Transcript) -> Reward:
        given = super().reward(transcript)
        return Reward(5 * given.value, given.metrics)


class Noise(RefundDesk):
    """The reward has a part that no seed decides."""

    def reward(self, transcript: Transcript) -> Reward:
        given = super().reward(transcript)
        return Reward(0.9 * given.value + 0.1 * random.random(), given.metrics)


class PaysSilence(RefundDesk):
    """An episode without an answer is worth more than most answers."""

    def reward(self, transcript: Transcript) -> Reward | float:
        return super().reward(transcript) if transcript.answer else 0.8


class Remembers(RefundDesk):
    """Which cases were handled stands in a file of all episodes, and a second time the reward is halved."""

    def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        first = super().reset(row, seed)
        with open(f"{self.config_folder}/cases", "a+") as file:
            file.seek(0)
            self.handled = file.read().split()
            file.write(f"{row['case_id']}\n")
        return first

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__({})
        self.config_folder = config["folder"]

    def reward(self, transcript: Transcript) -> Reward:
        given = super().reward(transcript)
        return Reward(given.value / 2 if self.case_id in self.handled else given.value, given.metrics)
