"""Word problems with a calculator, whose two numbers a program verifies exactly.

No row has the right answer: `solve` computes it from the row's numbers.

The module uses only the standard library, because a fresh sandbox imports it for every episode.
"""

from __future__ import annotations

import json

from headway_sandbox.environment import Environment, Observation, Reward, ToolError, system, tool, user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from typing import Any

    from headway_sandbox.environment import Transcript
    from headway_sandbox.testing import Call, Seen, ToolResult

FIELDS = ("packed", "left")
MAX_NUMBER = 10**6
"""Largest number that the calculator takes."""
TASK = """Solve the problem. calculate does one step.
Answer with <answer>{"packed": ..., "left": ...}</answer> and nothing else."""


def solve(row: Mapping[str, Any]) -> dict[str, int]:
    """The right answer."""
    packed = row["boxes"] * row["each"]
    return {"packed": packed, "left": packed - row["broken"]}


def parse(text: str) -> dict[str, int] | None:
    """The answer's numbers; None unless the text is one tag around one object of exactly these fields."""
    start, end = "<answer>", "</answer>"
    if not (text.startswith(start) and text.endswith(end)):
        return None
    try:
        pairs = json.loads(text[len(start) : -len(end)], object_pairs_hook=list)
    except (ValueError, RecursionError):
        return None
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        return None
    # In Python, True is an int and 42.0 equals 42. The task asks for a whole number, so refuse both.
    if sorted(key for key, _ in pairs) != sorted(FIELDS) or not all(type(value) is int for _, value in pairs):
        return None
    return dict(pairs)


def written(answer: Mapping[str, int]) -> str:
    """An answer in the required form."""
    return f"<answer>{json.dumps(answer)}</answer>"


class Sums(Environment):
    """One problem."""

    def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        self.expected = solve(row)
        return Observation([system(TASK), user(row["prompt"])])

    @tool
    def calculate(self, left: int, sign: str, right: int) -> int:
        """One step of arithmetic.

        sign: one of + - *
        """
        if max(abs(left), abs(right)) > MAX_NUMBER:
            raise ToolError(f"numbers lie within {MAX_NUMBER}")
        known = {"+": left + right, "-": left - right, "*": left * right}
        if sign not in known:
            raise ToolError("sign is one of + - *")
        return known[sign]

    def reward(self, transcript: Transcript) -> Reward:
        """Half for the share of right fields, and half if all are right. Training uses this number."""
        answer = parse(transcript.answer)
        right = [answer is not None and answer[name] == self.expected[name] for name in FIELDS]
        share = sum(right) / len(right)
        metrics = {
            "completion": float(answer is not None),
            **dict(zip(FIELDS, map(float, right), strict=True)),
        }
        return Reward((share + float(share == 1.0)) / 2, metrics)

    def score(self, transcript: Transcript) -> float:
        """1 if both numbers are exact, else 0. The score is reported, and not trained on."""
        return float(parse(transcript.answer) == self.expected)


def oracle(seen: Seen) -> Generator[Call, ToolResult, str]:
    """Plays a row correctly: calculates each step.

    Tests, `headway check` and `headway tiny-model` call it. No sandbox does.
    """
    from headway_sandbox.testing import Call

    row = seen.row
    found = yield Call("calculate", {"left": row["boxes"], "sign": "*", "right": row["each"]})
    packed = int(found.content)
    found = yield Call("calculate", {"left": packed, "sign": "-", "right": row["broken"]})
    return written({"packed": packed, "left": int(found.content)})
