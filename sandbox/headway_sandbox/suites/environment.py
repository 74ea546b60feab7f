"""Runs one sample of an Inspect AI task as an episode.

The server's process stays as small as for every environment, and uses only the standard library. The
episode's program (`program.py`) imports Inspect AI. It runs in the container `runner`, and leaves the
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
"""Seconds that the preflight waits for two processes to load a task."""
TAIL = 1000
"""Maximum characters of a program's output in a message."""
FOUND_BYTES = 1024 * 1024
"""Maximum bytes of a document that the program leaves."""


class InspectSample(Environment):
    """A sample, by its index. Reward and score are the value of the task's first scorer."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.task, self.args = str(config["task"]), dict(config.get("args") or {})

    def reset(self, row: Mapping[str, Any], seed: int) -> Observation:
        """Choose the sample. If the row asks for a check, another process loads the task.

        Raises:
            HttpError: the checked task cannot be run, or has no such sample.
        """
        asked = {"task": self.task, "args": self.args, "sample": int(row["sample"])}
        runner.put(files.episode_file() + files.ASKED, json.dumps(asked))
        if row.get("check"):
            check()
        return Observation([], [])

    def reward(self, transcript: Transcript) -> Reward:
        """The first scorer's value as reward, and the values of all scorers as metrics.

        Raises:
            ValueError: Inspect AI ended without scores; the message says why.
        """
        found = left() or {"error": {"message": "it did not end"}}
        if "error" in found:
            raise ValueError(f"Inspect AI has no score for the sample: {found['error']['message']}")
        return Reward(found["value"], found["metrics"])

    def score(self, transcript: Transcript) -> float:
        """The first scorer's value."""
        return self.reward(transcript).value


def check() -> None:
    """Load the task in another process.

    Raises:
        HttpError: permanent, with the suite's field.
    """
    import sys  # only the one check of a suite needs it

    from headway_sandbox.suites import program

    command = [sys.executable, "-m", program.__name__, program.CHECK]
    # The server's own working folder: a task's name may be a path relative to it.
    done = runner.run(command, timeout=CHECK_SECONDS, folder=os.getcwd())
    if done.timed_out:
        text = (
            f"the task was not loaded within {CHECK_SECONDS:g} s; give the sandbox more CPU, or put its data"
        )
        raise refusal({"field": "suite.task", "message": f"{text} into the image"})
    found = left()
    if found is None:
        output = (done.stderr or done.stdout).strip()[-TAIL:]
        text = f"the program that loads it ended with exit status {done.code}: {output}"
        raise refusal({"field": "suite.task", "message": text})
    if "error" in found:
        raise refusal(found["error"])


def left() -> dict[str, Any] | None:
    """The document that the program left; None if it left nothing.

    Raises:
        ValueError: the file is not a document, or is larger than the program's documents.
    """
    try:
        content = runner.get(files.episode_file() + files.FOUND, FOUND_BYTES)
    except OSError as error:
        raise ValueError(f"the file that the program left is not readable: {error}") from error
    return None if content is None else document(content)


def document(content: bytes) -> dict[str, Any]:
    """Parse the program's document. The program ran next to the model's code, so its shape is checked."""
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError("the file that the program left is not an object")
    return found


def refusal(error: Mapping[str, Any]) -> HttpError:
    """The permanent error for a suite that cannot run, as the program reports it."""
    return HttpError(500, "SuiteUnusable", error["message"], field=error["field"], permanent=True)
