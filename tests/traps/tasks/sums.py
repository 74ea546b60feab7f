"""A clean task: a word problem with a calculator, whose answer is a whole number after `####`."""

from __future__ import annotations

import re

from headway_sandbox.environment import Environment, Observation, Reward, ToolError, system, tool, user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from headway_sandbox.environment import Transcript


def rows(numbers: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each number."""
    found = []
    for number in numbers:
        boxes, pens, single = 11 + number % 37, 12 + number * 7 % 53, 3 + number * 11 % 19
        text = f"A shop has {boxes} boxes of {pens} pens each and {single} single pens. How many pens has it?"
        found.append({"prompt": text, "answer": boxes * pens + single})
    return found


class Sums(Environment):
    """The environment of one problem."""

    def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        self.row = row
        text = "Solve the problem. You may calculate. Answer with nothing but the number, such as: #### ..."
        return Observation([system(text), user(row["prompt"])])

    @tool
    def calculate(self, left: int, operation: str, right: int) -> dict[str, Any]:
        """One step of arithmetic.

        operation: one of + - *
        """
        known = {"+": left + right, "-": left - right, "*": left * right}
        if operation not in known:
            raise ToolError("operation is one of + - *")
        return {"result": known[operation]}

    def number(self, text: str) -> int | None:
        found = re.fullmatch(r"#### (-?\d+)", text)
        return int(found[1]) if found else None

    def reward(self, transcript: Transcript) -> Reward:
        number = self.number(transcript.answer)
        return Reward(
            0.1 * (number is not None) + 0.9 * (number == self.row["answer"]),
            {"completion": float(number is not None)},
        )

    def score(self, transcript: Transcript) -> float:
        return float(self.number(transcript.answer) == self.row["answer"])
