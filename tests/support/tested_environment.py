"""A short environment and an agent for it, for tests of sandboxes and of `headway_sandbox.testing`."""

from __future__ import annotations

import os

from headway_sandbox.environment import Done, Environment, Observation, Reward, tool, user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from typing import Any

    from headway_sandbox.environment import Transcript


def row(number: int) -> dict[str, Any]:
    return {"key": f"k{number}", "number": str(number)}


class Desk(Environment):
    """An environment that asks for the number of a key."""

    def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        if row.get("break"):
            raise RuntimeError("on purpose")
        self.row = row
        return Observation([user(f"How many is {row['key']}?")])

    @tool
    def look(self, key: str) -> str:
        """Look a key up."""
        return f"{key} is {key[1:]}"

    @tool
    def process(self) -> str:
        """Id of the process."""
        return str(os.getpid())

    @tool
    def write(self) -> str:
        """Write a file where files may be written."""
        path = os.path.join(os.environ["TMPDIR"], "note")
        new = "old" if os.path.exists(path) or os.path.exists("note") else "new"
        with open(path, "w") as file:
            file.write("x")
        return f"{new} {path}"

    @tool
    def variables(self) -> list[str]:
        """Names of its variables."""
        return sorted(os.environ)

    @tool
    def leave(self) -> Any:
        """End the episode."""
        return Done("left")

    def reward(self, transcript: Transcript) -> Reward:
        return Reward(self.score(transcript), {"calls": float(len(transcript.calls))})

    def score(self, transcript: Transcript) -> float:
        return float(transcript.answer == self.row["number"])


def clerk(seen: Any) -> Generator[Any, Any, str]:
    """An agent whose answer is right half of the time."""
    from headway_sandbox.testing import Call

    found = yield Call("look", {"key": seen.row["key"]})
    right = str(found.content).rpartition(" ")[2]
    return right if seen.random.random() < 0.5 else f"{right}0"
