"""An environment with the fault that its row names. On a row without one it is good."""

from __future__ import annotations

import os
import sys
import time

from headway_sandbox.environment import Environment, Observation, Reward, tool, user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from headway_sandbox.environment import Transcript

FIELDS = 1_000_000
MEGABYTES = 20


def hang() -> None:
    while True:
        time.sleep(0.01)


def fork(folder: str) -> None:
    """Start child processes that never end, half of them in sessions of their own."""
    for number in range(6):
        child = os.fork()
        if child == 0:
            if number % 2:
                os.setsid()
            hang()
        with open(f"{folder}/{child}", "w"):
            pass


def shout() -> None:
    for _ in range(MEGABYTES):
        print("x" * 2**20)


class Bad(Environment):
    """Does what `how` says in the method that `where` names."""

    def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        self.row = row
        return self.act("reset") or Observation([user("Say yes.")])

    @tool
    def look(self) -> str:
        """Look."""
        return self.act("look") or "fine"

    def reward(self, transcript: Transcript) -> Any:
        return self.act("reward") or Reward(float(transcript.answer == "yes"))

    def score(self, transcript: Transcript) -> Any:
        return self.act("score") or float(transcript.answer == "yes")

    def act(self, where: str) -> Any:
        """What to return instead of the good value, or None to return the good value."""
        if self.row.get("where") != where:
            return None
        acts = {
            "hangs": hang,
            "forks": lambda: fork(self.config["folder"]),
            "prints": shout,
            "ends the process": lambda: os._exit(0),
            "leaves": lambda: sys.exit(3),
            "NaN": lambda: float("nan"),
            "text": lambda: "high",
            "1e200": lambda: 1e200,
            "a set": lambda: {1, 2},
            "fields": lambda: Reward(0.5, {str(number): 0.0 for number in range(FIELDS)}),
        }
        if self.row["how"] == "raises":
            raise RuntimeError("on purpose")
        return acts[self.row["how"]]()
