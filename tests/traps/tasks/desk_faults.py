"""Faults of the quickstart's refund desk, one for each class, because its tiny model knows only that desk."""

from __future__ import annotations

import json
import random
import re

from environment import FIELDS, PROCEDURE, USAGES, RefundDesk, expected_answer, parse_answer

from headway_sandbox.environment import Reward, tool

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
    """Every episode has the same reward."""

    def reward(self, transcript: Transcript) -> float:
        return 0.5


class ToFive(RefundDesk):
    """The reward reaches 5, and the job says that its maximum is 1."""

    def reward(self, transcript: Transcript) -> Reward:
        given = super().reward(transcript)
        return Reward(5 * given.value, given.metrics)


class Noise(RefundDesk):
    """A part of the reward does not depend on the seed."""

    def reward(self, transcript: Transcript) -> Reward:
        given = super().reward(transcript)
        return Reward(0.9 * given.value + 0.1 * random.random(), given.metrics)


class PaysSilence(RefundDesk):
    """An episode without an answer earns more than most answers."""

    def reward(self, transcript: Transcript) -> Reward | float:
        return super().reward(transcript) if transcript.answer else 0.8


class Lenient(RefundDesk):
    """Reward and score read the answer's fields by `parsed`, and pay the share that is right."""

    def parsed(self, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def share(self, transcript: Transcript) -> float:
        expected, answer = expected_answer(self.case_id), self.parsed(transcript.answer)
        return sum(answer.get(name) == expected[name] for name in FIELDS) / len(FIELDS)

    def reward(self, transcript: Transcript) -> float:
        return self.share(transcript)

    def score(self, transcript: Transcript) -> float:
        return float(self.share(transcript) == 1.0)


class AnyOfSeveral(Lenient):
    """Of several answers, the one with the most right fields counts. So it pays to write all of them."""

    def parsed(self, text: str) -> dict[str, Any]:
        expected = expected_answer(self.case_id)
        found = [parse_answer(one) or {} for one in re.findall(r"<final_output>.*?</final_output>", text)]
        return max(
            found, key=lambda answer: sum(answer.get(name) == expected[name] for name in FIELDS), default={}
        )


class AnyTag(Lenient):
    """An answer counts in any tag."""

    def parsed(self, text: str) -> dict[str, Any]:
        found = re.fullmatch(r"<(\w+)>(.*)</\1>", text, re.DOTALL)
        return parse_answer(f"<final_output>{found[2]}</final_output>") or {} if found else {}


class FieldMayBeMissing(Lenient):
    """A missing field costs nothing."""

    def parsed(self, text: str) -> dict[str, Any]:
        found = re.fullmatch(r"<final_output>(.*)</final_output>", text)
        try:
            answer = json.loads(found[1]) if found else {}
        except ValueError:
            answer = {}
        return answer if isinstance(answer, dict) else {}

    def share(self, transcript: Transcript) -> float:
        expected, answer = expected_answer(self.case_id), self.parsed(transcript.answer)
        return sum(expected.get(name) == value for name, value in answer.items()) / max(1, len(answer))


class OrderOfKeys(RefundDesk):
    """A right answer whose keys are in another order is wrong."""

    def right(self, transcript: Transcript) -> bool:
        return list(parse_answer(transcript.answer) or {}) == list(FIELDS)

    def reward(self, transcript: Transcript) -> Reward | float:
        return super().reward(transcript) if self.right(transcript) else 0.0

    def score(self, transcript: Transcript) -> float:
        return super().score(transcript) if self.right(transcript) else 0.0


class TwoFieldsOfFive(RefundDesk):
    """The reward reads two of the five fields that the score reads."""

    def reward(self, transcript: Transcript) -> float:
        expected, answer = expected_answer(self.case_id), parse_answer(transcript.answer) or {}
        return sum(answer.get(name) == expected[name] for name in ("method", "item")) / 2


class NotANumber(RefundDesk):
    """The mean over the wrong answers of a group without any, which is not a number."""

    def reward(self, transcript: Transcript) -> Reward | float:
        return super().reward(transcript) if self.score(transcript) else float("nan")


class RowDecides(RefundDesk):
    """What an episode earns depends on its case alone."""

    def reward(self, transcript: Transcript) -> float:
        return float(sum(map(ord, self.case_id)) % 2)


class PaysKeywords(RefundDesk):
    """The reward counts how many words of the procedure the answer has."""

    def reward(self, transcript: Transcript) -> float:
        words = set(re.findall(r"[a-z]{4,}", PROCEDURE))
        return sum(word in transcript.answer for word in words) / len(words)


class NeverScores(RefundDesk):
    """The score wants an item that no case has."""

    def reward(self, transcript: Transcript) -> float:
        return super().reward(transcript).value * 0.9

    def score(self, transcript: Transcript) -> float:
        return float((parse_answer(transcript.answer) or {}).get("item") == "LAMP")


class UsageAtRandom(RefundDesk):
    """A tool's answer is drawn at random at each call."""

    @tool
    def get_usage(self, case_id: str) -> dict[str, str]:
        """How used it is."""
        self._must_exist(case_id)
        return {"usage": random.choice(USAGES)}


class LosesEpisodes(RefundDesk):
    """A tool breaks on every other case."""

    @tool
    def get_usage(self, case_id: str) -> dict[str, str]:
        """How used it is."""
        if sum(map(ord, case_id)) % 2 == 0:
            raise KeyError(case_id)
        return super().get_usage(case_id)


class CounterOfAll(RefundDesk):
    """A tool counts the calls of all episodes in one file."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__({})
        self.count = f"{config['folder']}/count"

    @tool
    def get_usage(self, case_id: str) -> dict[str, Any]:
        """How used it is."""
        with open(self.count, "a+") as file:
            file.write("x")
            file.seek(0)
            return {**super().get_usage(case_id), "calls": len(file.read())}


class NeedsAnOrder(RefundDesk):
    """The environment needs a column."""

    def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        self.order = row["order"]
        return super().reset(row, seed)
