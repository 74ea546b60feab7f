"""Plays episodes of an environment in a process of their own, and yields each finding once it is known.

The process runs the module `played`, and in it the author's oracle, which may print, hang or exit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headway_analysis.preflight.definition import Example, Finding
from headway_api.document import Json
from headway_cli.checking import process as processes
from headway_cli.checking.job import Spec
from headway_cli.checking.rows import TRAIN, Data

ENVIRONMENT: Final = "environment"
REPORTED: Final = "headway_sandbox.reported:"
"""Beginning of the entrypoint of an environment that takes the reward from the agent's own report."""
SECONDS: Final = 300.0
"""Maximum seconds for all episodes together."""
CLOSING_SECONDS: Final = 5.0
"""Maximum seconds between the process's last finding and its end."""
TAIL: Final = 2_000
"""Number of last bytes read from the output of a process that failed."""


@dataclass(frozen=True)
class PlayRequest:
    """The job whose episodes to play, and on how many rows."""

    document: Json
    """The job, as in its file."""
    folder: str
    """Folder of the environment's modules."""
    rows: int
    """Maximum training rows on which episodes are played."""


def findings(asked: PlayRequest, spec: Spec, data: Data, seconds: float = SECONDS) -> Iterator[Finding]:
    """The findings of the checks that play episodes, as soon as they are known."""
    if (why := _not_played(spec, data)) is not None:
        yield why
        return
    command = [sys.executable, "-P", "-m", "headway_cli.checking.played"]
    with tempfile.TemporaryFile() as output:
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": output}
        with processes.running(command, **streams) as process:
            late = threading.Event()

            def end() -> None:
                late.set()
                processes.end(process)

            timer = threading.Timer(seconds, end)
            timer.start()
            try:
                yield from _written_findings(process, asked)
                code = processes.ended(process, CLOSING_SECONDS)
            finally:
                timer.cancel()
        if late.is_set():
            observed = f"Episodes had not ended after {seconds:.0f} s."
            yield Finding(ENVIRONMENT, "Fail", observed, advice="Make reset, tools, reward and score faster.")
        elif code != 0:
            output.seek(0)
            yield _broken(output.read()[-TAIL:].decode(errors="replace"), code)


def _written_findings(process: subprocess.Popen[bytes], asked: PlayRequest) -> Iterator[Finding]:
    """The findings that the process writes, one a line."""
    assert process.stdin is not None
    assert process.stdout is not None
    with (
        contextlib.suppress(BrokenPipeError),
        process.stdin as pipe,
    ):  # the pipe is broken if the process has ended; its last output then says why
        pipe.write(json.dumps(dataclasses.asdict(asked)).encode())
    with process.stdout as lines:
        for line in lines:
            if line.endswith(b"\n"):  # the process may have been killed while it wrote a line
                yield of_json(json.loads(line))


def _broken(output: str, code: int | None) -> Finding:
    last = (output.strip().splitlines() or ["it printed nothing"])[-1]
    observed = f"The episodes' process ended with {code}: {last}"
    advice = "The oracle must not end the process or its threads. If it does not, report a bug of Headway."
    return Finding(ENVIRONMENT, "Unknown", observed, advice=advice)


def _not_played(spec: Spec, data: Data) -> Finding | None:
    """A finding that says why no episode can be played here; None if episodes can be played."""
    if not data.of(TRAIN):
        observed, advice = "No episode was played, because no rows are known.", "Correct the rows first."
        return Finding(ENVIRONMENT, "Unknown", observed, advice=advice, field="spec.data")
    if spec.environment.entrypoint.startswith(REPORTED):
        observed = "No episode was played: the agent reports its own reward, and is not called here."
        return Finding(ENVIRONMENT, "Unknown", observed, field="spec.agent.http")
    if spec.judges:
        observed = "No episode was played: reward and score may ask judges, and no judge is asked here."
        advice = "The job's preflight asks them."
        return Finding(ENVIRONMENT, "Unknown", observed, advice=advice, field="spec.judges")
    return None


def to_json(finding: Finding) -> Json:
    """A finding as a JSON object, without empty fields."""
    made = dataclasses.asdict(finding)
    made["figures"] = dict(made.pop("numbers"))
    made["examples"] = [
        {key: value for key, value in example.items() if value is not None} for example in made["examples"]
    ]
    return {key: value for key, value in made.items() if value not in (None, "", {}, [])}


def of_json(found: Json) -> Finding:
    """The finding in a JSON object that `to_json` returned."""
    examples = tuple(Example(**example) for example in found.get("examples", ()))
    numbers = tuple(found.get("figures", {}).items())
    known = {key: value for key, value in found.items() if key != "figures"}
    return Finding(**{**known, "examples": examples, "numbers": numbers})
