"""A clean task: a request is decided by one word in a tag, and labels have the form of answers."""

from __future__ import annotations

from parcels import pick

from headway_sandbox.environment import Environment, Observation, Reward, ToolError, system, tool, user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from headway_sandbox.environment import Transcript


DECISIONS = {
    "broken screen": "repair",
    "never arrived": "refund",
    "wrong colour": "exchange",
    "lost password": "reset",
    "double charge": "reverse",
    "rude courier": "escalate",
}


def topic(request: str) -> str:
    return pick(DECISIONS, "topic", request)


def rows(numbers: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each request number."""
    names = [f"R-{number:04d}" for number in numbers]
    return [
        {
            "prompt": f"Decide on request {name}.",
            "request": name,
            "answer": f"<decision>{DECISIONS[topic(name)]}</decision>",
        }
        for name in names
    ]


class Triage(Environment):
    """The environment of one request."""

    EXAMPLE = "<decision>...</decision>"

    def prompt(self) -> str:
        rules = ", ".join(f"{key}: {value}" for key, value in DECISIONS.items())
        return f"Read the request, then decide by its topic ({rules}). Answer with nothing but {self.EXAMPLE}"

    def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        self.row = row
        return Observation([system(self.prompt()), user(row["prompt"])])

    @tool
    def read_request(self, request: str) -> dict[str, Any]:
        """What a request is about."""
        if request != self.row["request"]:
            raise ToolError("no such request")
        return {"topic": topic(request)}

    def formed(self, text: str) -> bool:
        return text.startswith("<decision>") and text.endswith("</decision>") and text.count("<") == 2

    def reward(self, transcript: Transcript) -> Reward:
        formed = self.formed(transcript.answer)
        right = transcript.answer == self.row["answer"]
        return Reward(0.1 * formed + 0.9 * right, {"completion": float(formed)})

    def score(self, transcript: Transcript) -> float:
        return float(transcript.answer == self.row["answer"])
