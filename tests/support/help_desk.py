"""A small environment without faults, a help desk, and variants of it with one fault each."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from made_up_baselines import Policy, sample_of

from headway_analysis.preflight.evidence import Baseline, Call
from headway_sandbox.environment import (
    Environment,
    Observation,
    Reward,
    ToolError,
    Transcript,
    system,
    tool,
    user,
)

TIERS = ("gold", "silver", "bronze", "staff")
LIMITS = {"gold": 900, "silver": 500, "bronze": 100, "staff": 1500}
ACTIONS = ("refund", "exchange", "repair", "voucher", "decline")
PROMPT = """You work at a help desk. Look the case up, then answer as JSON in a tag, like this:
<answer>{"action": "repair", "limit": 250}</answer>"""
Row = Mapping[str, Any]


def desk_rows(count: int, seed: int = 0) -> list[Row]:
    """Rows: cases with their labels."""
    drawn = random.Random(seed)
    found = []
    for number in range(count):
        tier, action = drawn.choice(TIERS), drawn.choice(ACTIONS)
        case = f"case-{seed}-{number}-{drawn.randrange(10**4)}"
        expected = {"action": action, "limit": LIMITS[tier] + number}
        found.append({"prompt": f"What is to be done about {case}?", "case_id": case, "expected": expected})
    return found


class Desk(Environment):
    """The help desk without faults."""

    def reset(self, row: Row, seed: int) -> Observation:
        self.row = row
        self.seed = seed
        return Observation([system(self.prompt()), user(row["prompt"])])

    def prompt(self) -> str:
        return PROMPT

    @tool
    def get_case(self, case_id: str) -> dict[str, Any]:
        """What is known of a case.

        case_id: its number.
        """
        if case_id != self.row["case_id"]:
            raise ToolError("no such case")
        return self.case()

    def case(self) -> dict[str, Any]:
        return {"complaint": ACTIONS.index(self.row["expected"]["action"]), "spent": 7}

    @tool
    def get_limit(self, case_id: str) -> dict[str, Any]:
        """Its limit, in cents."""
        return {"cents": self.row["expected"]["limit"] * 100}

    def read(self, text: str) -> Mapping[str, Any]:
        found = re.fullmatch(r"\s*<answer>(.*)</answer>\s*", text, re.DOTALL)
        try:
            value = json.loads(found.group(1)) if found else {}
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    def right(self, transcript: Transcript) -> float:
        answer, expected = self.read(transcript.answer), self.row["expected"]
        return sum(answer.get(key) == value for key, value in expected.items()) / len(expected)

    def reward(self, transcript: Transcript) -> Reward | float:
        return Reward(0.9 * self.right(transcript) + 0.1 * bool(self.read(transcript.answer)))

    def score(self, transcript: Transcript) -> float:
        return float(self.read(transcript.answer) == self.row["expected"])


def written(answer: Mapping[str, Any], tag: str = "answer") -> str:
    return f"<{tag}>{json.dumps(dict(answer))}</{tag}>"


def desk_model(skill: float = 0.5, seed: int = 0) -> Policy:
    """A policy that calls both tools. `skill` and the case decide how often its action is right."""

    def policy(row: Row, index: int) -> tuple[Sequence[Call], str]:
        drawn = random.Random(f"{seed}/{row['case_id']}/{index}")
        hard = random.Random(f"{seed}/{row['case_id']}").uniform(-0.2, 0.2)
        answer = dict(row["expected"])
        if drawn.random() > skill + hard:
            answer["action"] = drawn.choice([each for each in ACTIONS if each != answer["action"]])
        if drawn.random() > 0.9:
            answer["limit"] += 11
        case = {"case_id": row["case_id"]}
        return (Call("get_case", case), Call("get_limit", case)), written(answer)

    return policy


def desk_baseline(
    make: type[Environment] = Desk,
    skill: float = 0.5,
    seed: int = 0,
    rows: int = 13,
    size: int = 8,
    **facts: Any,
) -> Baseline:
    """Baseline episodes of the desk, or of a variant with a fault."""
    model = desk_model(skill, seed)
    return sample_of(lambda: make({}), desk_rows(rows, seed), model, size, seed=seed, **facts)


class ClockedDesk(Desk):
    """Fault: a tool returns the time."""

    def case(self) -> dict[str, Any]:
        return {**super().case(), "asked_at": time.monotonic_ns()}


class UnseededDesk(Desk):
    """Fault: the prompt does not depend on the seed alone."""

    ticks = itertools.count()

    def prompt(self) -> str:
        return f"{PROMPT}\nStyle {next(self.ticks)}."


class OrderedDesk(Desk):
    """Fault: the answer of a read-only tool depends on earlier calls."""

    def reset(self, row: Row, seed: int) -> Observation:
        self.calls = 0
        return super().reset(row, seed)

    def case(self) -> dict[str, Any]:
        self.calls += 1
        return {**super().case(), "page": self.calls}


class CountingDesk(Desk):
    """Fault: a counter continues across episodes."""

    opened = 0

    def case(self) -> dict[str, Any]:
        CountingDesk.opened += 1
        return {**super().case(), "ticket": CountingDesk.opened}


class RememberingDesk(Desk):
    """Fault: later episodes can read the notes of earlier ones."""

    notes: list[str] = []  # noqa: RUF012

    @tool
    def add_note(self, text: str) -> str:
        """Leave a note."""
        self.notes.append(text)
        return "noted"

    @tool
    def list_notes(self) -> list[str]:
        """All notes."""
        return self.notes[-3:]


class SubstringDesk(Desk):
    """Fault: an answer gets everything if it contains the right action anywhere."""

    def reward(self, transcript: Transcript) -> Reward | float:
        return self.score(transcript)

    def score(self, transcript: Transcript) -> float:
        return float(self.row["expected"]["action"] in transcript.answer)


class AnyTagDesk(Desk):
    """Fault: an answer in any tag is accepted."""

    def read(self, text: str) -> Mapping[str, Any]:
        found = re.search(r"\{.*\}", text, re.DOTALL)
        return super().read(f"<answer>{found.group()}</answer>") if found else {}


class OneFieldDesk(Desk):
    """Fault: the score ignores every field except the action."""

    def score(self, transcript: Transcript) -> float:
        return float(self.read(transcript.answer).get("action") == self.row["expected"]["action"])


class LenientRewardDesk(Desk):
    """Fault: the reward is 1 for the tag alone."""

    def reward(self, transcript: Transcript) -> Reward | float:
        return float("<answer>" in transcript.answer)


class OrderOfKeysDesk(Desk):
    """Fault: the answer is compared as text, so the order of keys matters."""

    def score(self, transcript: Transcript) -> float:
        return float(transcript.answer == written(self.row["expected"]))


class OtherTagDesk(Desk):
    """Fault: the prompt shows another tag than the one that is parsed."""

    def prompt(self) -> str:
        return PROMPT.replace("answer>", "final>")


class ForgetfulDesk(Desk):
    """Fault: the example in the prompt lacks a field."""

    def prompt(self) -> str:
        return PROMPT.replace(', "limit": 250', "")


class TellingDesk(Desk):
    """Fault: the prompt contains the label."""

    def prompt(self) -> str:
        return f"{PROMPT}\nExpected: {json.dumps(self.row['expected'])}"


class LeakingDesk(Desk):
    """Fault: a tool returns the label."""

    def case(self) -> dict[str, Any]:
        return {**super().case(), "expected": self.row["expected"]}


class WholeDesk(Desk):
    """Fault: the first call returns every field of the label, by name."""

    def case(self) -> dict[str, Any]:
        return {**super().case(), **self.row["expected"]}


class GenerousDesk(Desk):
    """Fault: every answer has score 1."""

    def score(self, transcript: Transcript) -> float:
        return 1.0


class RaisingDesk(Desk):
    """Fault: the reward raises for an empty answer."""

    def reward(self, transcript: Transcript) -> Reward | float:
        return float(transcript.answer[0] == "<") * self.right(transcript)


class BigDesk(Desk):
    """Fault: rewards are beyond their range."""

    def reward(self, transcript: Transcript) -> Reward | float:
        return 5 * self.right(transcript)


class PickyDesk(Desk):
    """Fault: `reset` raises for some rows."""

    def reset(self, row: Row, seed: int) -> Observation:
        if row.get("closed"):
            raise KeyError("opened_by")
        return super().reset(row, seed)
