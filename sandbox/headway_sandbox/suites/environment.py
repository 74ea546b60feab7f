"""One sample of a task of Inspect AI as an episode.

The server's process stays what it is for every environment: small, and the standard library alone. Inspect
AI is imported by the program of the episode (`program.py`). It runs in the container `runner`, and leaves the
sample's scores in a file there.
"""

from __future__ import annotations

import json
import os

from headway_sandbox import runner
from headway_sandbox.environment import Environment, Observation, Reward
from headway_sandbox.http import HttpError
from headway_sandbox.suites import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from headway_sandbox.environment import Transcript

CHECK_SECONDS = 300.0
"""Longest that the preflight waits for a task to be loaded, by two processes."""
TAIL = 1000
"""Characters of a program's output that a message holds."""
FOUND_BYTES = 1024 * 1024
"""Of a document that the program leaves."""


class InspectSample(Environment):
    """A sample, by its index; reward and score are what the task's first scorer said."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.task, self.args = str(config["task"]), dict(config.get("args") or {})

    def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        """Say which sample is meant. A row that asks for a check has the task loaded, by another process.

        Raises:
            Refusal: the checked task cannot be run, or has no such sample.
        """
        asked = {"task": self.task, "args": self.args, "sample": int(row["sample"])}
        runner.put(files.episode_file() + files.ASKED, json.dumps(asked))
        if row.get("check"):
            check()
        return Observation([], [])

    def reward(self, transcript: Transcript) -> Reward:
        """The first scorer's value; every scorer's is a metric.

        Raises:
            ValueError: Inspect AI ended without scores, and said why.
        """
        found = left() or {"error": {"message": "it did not end"}}
        if "error" in found:
            raise ValueError(f"Inspect AI has no score for the sample: {found['error']['message']}")
        return Reward(found["value"], found["metrics"])

    def score(self, transcript: Transcript) -> float:
        """The first scorer's value."""
        return self.reward(transcript).value


def check() -> None:
    """Load the task in a process of its own.

    Raises:
        Refusal: permanent, with the suite's field.
    """
    import sys  # once a suite

    from headway_sandbox.suites import program

    command = [sys.executable, "-m", program.__name__, program.CHECK]
    # Where the server itself stands: a task may be named by a path from there.
    done = runner.run(command, timeout=CHECK_SECONDS, folder=os.getcwd())
    if done.timed_out:
        text = (
            f"the task was not loaded within {CHECK_SECONDS:g} s; give the sandbox more CPU, or put its data"
        )
        raise refusal({"field": "suite.task", "message": f"{text} into the image"})
    found = left()
    if found is None:
        said = (done.stderr or done.stdout).strip()[-TAIL:]
        text = f"the program that loads it ended with exit status {done.code}: {said}"
        raise refusal({"field": "suite.task", "message": text})
    if "error" in found:
        raise refusal(found["error"])


def left() -> dict[str, Any] | None:
    """What the program has left; None where it has left nothing.

    Raises:
        ValueError: it is no document, or a larger one than any program leaves.
    """
    try:
        content = runner.get(files.episode_file() + files.FOUND, FOUND_BYTES)
    except OSError as error:
        raise ValueError(f"the file that the program left is not readable: {error}") from error
    return None if content is None else document(content)


def document(content: bytes) -> dict[str, Any]:
    """The program's words, in bounds: it ran beside what the model says."""
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError("the file that the program left holds no object")
    return found


def refusal(error: Mapping[str, Any]) -> HttpError:
    """What the program says cannot be done."""
    return HttpError(500, "SuiteUnusable", error["message"], field=error["field"], permanent=True)
