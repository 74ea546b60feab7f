"""The environment of the benchmark: a tool returns a procedure, step by step."""

from __future__ import annotations

import procedure

from headway_sandbox.environment import Environment, Observation, system, tool, user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headway_sandbox.environment import Transcript


class Desk(Environment):
    """An episode succeeds if its answer is the procedure's answer."""

    def reset(self, row: dict[str, Any], seed: int) -> Observation:
        self.case, self.steps, self.read = row["case"], row["steps"], 0
        return Observation([system(procedure.SYSTEM), user(row["prompt"])])

    @tool
    def next_step(self, about: str) -> str:
        """Read the next step of the procedure.

        about: What the step is read for.
        """
        self.read += 1
        return procedure.step(self.case, self.read, self.steps)

    def reward(self, transcript: Transcript) -> float:
        return float(procedure.solved(transcript.answer))

    def score(self, transcript: Transcript) -> float:
        return float(procedure.solved(transcript.answer))
