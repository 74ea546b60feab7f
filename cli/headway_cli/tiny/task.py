"""The task that a tiny model is taught: a job's environment, its training rows and its oracle."""

from __future__ import annotations

import importlib
import random
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic_core import to_jsonable_python

from headway_analysis.preflight.playing import Agent, EpisodeCutError, Turns
from headway_api import names, rows
from headway_api.exits import JobError
from headway_api.opening import opening
from headway_api.sandbox_api import ResetReply
from headway_api.spec.training import RLTrainingJob
from headway_api.store import open_store
from headway_cli.local import manifest
from headway_cli.local.manifest import ManifestError
from headway_sandbox.testing import Call, Sandboxes, Seen, ToolResult
from headway_sandbox.testing.playing import Model

ORACLE: Final = "oracle"
"""Name of the function in the environment's module that plays a row correctly."""
EXAMPLE: Final = f"""
def {ORACLE}(seen):  # plays a training row right; no sandbox pod calls it
    from headway_sandbox.testing import Call

    found = yield Call("get_case", {{"case_id": seen.row["case_id"]}})  # a tool, and its arguments
    return f"<answer>{{found.content}}</answer>"  # the right answer"""
LONGEST_EPISODE: Final = 60.0
"""Seconds after which an episode counts as hung."""
FEWEST_ROWS: Final = 16
"""Minimum training rows: some to teach the model, and others to measure what it has learned."""


class TinyModelError(ManifestError):
    """A tiny model cannot be made from this job or its environment; the message says what to write."""


@dataclass(frozen=True)
class Task:
    """The environment, oracle and rows from which a tiny model is taught, and limits of its job."""

    sandboxes: Sandboxes
    oracle: Model
    rows: Sequence[rows.Row]
    """Training rows, the only rows of the job that are read."""
    system_prompt: str | None
    max_turns: int | None
    """Maximum turns of an episode; None for an agent with a loop of its own."""
    max_tokens: int
    """Maximum tokens of one turn."""
    context_length: int | None
    """Maximum tokens of an episode; None if the job does not set it."""
    threshold: float
    """Minimum external score of a success."""
    seed: int
    base: str
    """`spec.model.base` of the job."""
    dtype: str


def task_of_job(job: dict[str, Any], folder: Path) -> Task:
    """The task of a job whose environment's modules are in `folder`.

    Raises:
        ManifestError: the job's spec is wrong.
        TinyModelError: it is not a training job, its training rows cannot be read, or there is no oracle.
    """
    if job["kind"] != names.TRAINING_KIND:
        raise TinyModelError(f"the file has an {job['kind']}: name one with an {names.TRAINING_KIND}")
    made, _ = manifest.local(job, folder, manifest.utc_now())
    spec = RLTrainingJob.model_validate(made).spec
    try:
        found = rows.load(spec.data.train, open_store(spec.output), "spec.data.train")
    except JobError as error:
        raise TinyModelError(error.termination.sentence) from error
    if len(found) < FEWEST_ROWS:
        raise TinyModelError(f"spec.data.train has {len(found)} rows: write {FEWEST_ROWS} or more")
    builtin, environment = spec.agent.builtin, spec.environment
    return Task(
        Sandboxes(
            environment.entrypoint,
            environment.config or {},
            [folder],
            timeout=min(spec.rollout.timeout_seconds, LONGEST_EPISODE),
            runs_code=environment.sandbox.runs_code,
        ),
        oracle_of(environment.entrypoint, folder),
        [to_jsonable_python(row) for row in found],  # a sandbox receives rows as JSON
        builtin.system_prompt if builtin else None,
        builtin.max_turns if builtin else None,
        spec.rollout.sampling.max_tokens,
        spec.model.context_length,
        spec.evaluation.success_threshold,
        spec.seed,
        spec.model.base,
        spec.model.dtype,
    )


def oracle_of(entrypoint: str, folder: Path) -> Model:
    """Import the environment's module from `folder`, and return its oracle.

    Raises:
        TinyModelError: the module cannot be imported, or has no oracle.
    """
    name = entrypoint.partition(":")[0]
    known = getattr(sys.modules.get(name), "__file__", None)
    if known is not None and not Path(known).is_relative_to(
        folder
    ):  # another environment's module of the same name was imported earlier
        del sys.modules[name]
    sys.path[:] = [str(folder), *(each for each in sys.path if each != str(folder))]
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise TinyModelError(
            f"spec.environment.entrypoint: {name} cannot be imported from {folder}: {_error_text(error)}; "
            "write --environment FOLDER if its modules are elsewhere"
        ) from error
    oracle: Model | None = getattr(module, ORACLE, None)
    if not callable(oracle):
        raise TinyModelError(
            f"{name} has no oracle: write a function that plays a row right, such as\n{EXAMPLE}"
        )
    return oracle


def agent_of(model: Model, row: rows.Row, drawn: random.Random, system_prompt: str | None = None) -> Agent:
    """An agent that plays one row as `model` does, such as an oracle.

    The agent raises TinyModelError if the model raises an error, yields something that is not a call, or
    returns something that is not text.
    """

    def agent(first: ResetReply) -> Turns:
        turns = _asked(lambda: model(Seen(row, opening(first.messages, system_prompt), first.tools, drawn)))
        if isinstance(turns, str):
            return turns
        if not hasattr(turns, "send"):
            raise TinyModelError(
                f"oracle returned {_shown(turns)}: yield Calls, and return the answer's text"
            )
        result: ToolResult | None = None
        while True:
            ended, call = _asked(lambda: _next(turns, result))  # noqa: B023  # called at once
            if ended and (call is None or isinstance(call, str)):
                return call
            if ended:
                raise TinyModelError(
                    f"oracle ended with {_shown(call)}: return the answer's text, or nothing"
                )
            if not isinstance(call, Call):
                raise TinyModelError(
                    f"oracle yielded {_shown(call)}: yield Call(NAME, {{...}}) of headway_sandbox.testing"
                )
            result = yield call

    return agent


def _next(turns: Any, result: ToolResult | None) -> tuple[bool, Any]:
    """Whether the model has ended, with its result if so, and with its next call if not."""
    try:
        return False, next(turns) if result is None else turns.send(result)
    except StopIteration as end:
        return True, end.value


def _asked(step: Any) -> Any:
    try:
        return step()
    except EpisodeCutError:  # the model has used up its turns or tokens, which is no fault
        raise
    except Exception as error:
        raise TinyModelError(f"oracle raised {_error_text(error)}") from error


def _error_text(error: BaseException) -> str:
    """An error as text, with the place where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{at}"


def _shown(value: object) -> str:
    return f"a {type(value).__name__}" if value is not None else "nothing"
