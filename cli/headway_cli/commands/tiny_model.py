"""`headway tiny-model`: makes a tiny model, to try an environment with."""

from __future__ import annotations

import importlib
import json
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from headway_cli.commands.common import INTERRUPTED, Changes, Form, Output, note, reported_errors
from headway_cli.local import manifest
from headway_cli.tiny import making, task
from headway_cli.tiny.making import Made, Share
from headway_cli.tiny.task import Task, TinyModelError

FILE: Final = "file://"
DTYPE: Final = "float32"
"""Number format in which a job should use the tiny model: exact, and fast enough for its size."""
NEEDED: Final = ("torch", "transformers", "tokenizers", "renderers")
"""Packages that the command needs, and that other commands do not import."""


def tiny_model(
    job: Annotated[Path, typer.Argument(help="File with the RLTrainingJob.")] = Path("job.yaml"),
    environment: Annotated[
        Path | None, typer.Option(help="Folder of the environment's modules. Default: the folder of FILE.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the model; default: spec.model.base if that is a file://, else tiny-model."
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Most seconds to take, roughly.")] = 90,
    skill: Annotated[
        float, typer.Option(min=0, max=1, help="Share of rows that it should answer right.")
    ] = 0.4,
    set_: Changes = None,
    output: Output = Form.TEXT,
) -> None:
    """Make a tiny model that speaks an environment's tools, to try a job with on two cores.

    It is taught from episodes of the environment's own `oracle` on training rows, some with mistakes, so that
    there is something to improve. No held-out row is read.
    """
    began = time.monotonic()
    with reported_errors():
        require_packages()
        modules = (environment or job.parent).resolve()
        found = task.task_of_job(manifest.changed(manifest.read(job), set_ or []), modules)
        try:
            made = making.made(found, out or place(found, job), began, seconds, skill, note)
        except KeyboardInterrupt:
            note("stopped; nothing was written")
            raise typer.Exit(INTERRUPTED) from None
    if output is Form.JSON:
        typer.echo(json.dumps(making.summary(made)))
    else:
        typer.echo(described(made))
        typer.echo(f"try it: {command(found, made, job, environment, set_ or [])}")
    for each in warnings(found, made):
        note(f"warning: {each}")


def place(found: Task, job: Path) -> Path:
    """The model's folder: the folder in spec.model.base if it is a `file://` URI, else one beside the job."""
    if found.base.startswith(FILE):
        return Path(found.base.removeprefix(FILE))
    return job.parent / "tiny-model"


def require_packages() -> None:
    """Raise TinyModelError if a package that teaching needs is not installed."""
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise TinyModelError(
                f"teaching a model needs {error.name}: pip install 'headway[cli,coordinator,trainer]'. Or "
                "name a model of the hub in spec.model.base, such as hf://Qwen/Qwen3-0.6B"
            ) from error


def described(made: Made) -> str:
    """A text of a few lines about the model that was made."""
    sft = made.sft
    return "\n".join(
        [
            f"{made.parameters:,} parameters, taught from {made.rows} training rows in {sft.steps} steps: "
            f"loss {sft.first_loss:.2f} -> {sft.last_loss:.2f}",
            f"success on other training rows: greedy {share(made.greedy)}, sampled {share(made.sampled)}",
            f"tokens: a turn has {made.longest_turn} at most, an episode {made.longest_episode}",
            f"spec.model.base: {FILE}{made.folder}",
        ]
    )


def share(found: Share) -> str:
    """A share as text: `N of M`."""
    return f"{found.successes} of {found.rows}"


def command(task: Task, made: Made, job: Path, environment: Path | None, changes: list[str]) -> str:
    """The command that runs the job with the model."""
    base = f"{FILE}{made.folder}"
    more = [] if task.base == base else [f"spec.model.base={base}"]
    more += [] if task.dtype == DTYPE else [f"spec.model.dtype={DTYPE}"]
    words = ["headway", "run", str(job), "--local"]
    words += [] if environment is None else ["--environment", str(environment)]
    for each in [*changes, *more]:
        words += ["--set", each]
    return shlex.join(words)


def warnings(task: Task, made: Made) -> Iterator[str]:
    """Warnings about settings of the job, or traits of the model, that would keep the model from learning."""
    if made.longest_turn > task.max_tokens:
        yield f"spec.rollout.sampling.maxTokens is {task.max_tokens}: write {made.longest_turn} or more"
    if task.max_turns is not None and made.turns > task.max_turns:
        yield f"spec.agent.builtin.maxTurns is {task.max_turns}: write {made.turns} or more"
    if task.context_length is not None and made.longest_episode > task.context_length:
        yield f"spec.model.contextLength is {task.context_length}: write {made.longest_episode} or more"
    if task.max_turns is None:
        yield "spec.agent is not builtin: the model knows only the environment's prompt and tools"
    if made.sampled.rows and not made.sampled.successes:
        yield "it never succeeded: write --seconds 300, or take a larger model in spec.model.base"
