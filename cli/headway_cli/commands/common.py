"""What the commands share: exit codes, options, and error messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from headway_api import names
from headway_api.document import Json
from headway_cli import progress
from headway_cli.cluster import ClusterError
from headway_cli.local.machine import MachineBusy
from headway_cli.local.manifest import ManifestWrong
from headway_cli.runs import NoRun

JOBS: Final = Path(names.LOCAL_JOBS)
"""Folder with the folders of local jobs, below the current directory."""
WRONG, FAILED, HELD, INTERRUPTED, CLOSED = 2, 1, 3, 130, 141
"""Exit codes: the input is wrong; the job failed; the job is held until something is changed; Ctrl-C; nobody
reads the output of a command that follows a job."""
KNOWN: Final = (ManifestWrong, MachineBusy, ClusterError, NoRun)
"""Errors whose message says what is wrong, and what to write."""


class Form(StrEnum):
    """How a result is written."""

    TEXT = "text"
    JSON = "json"


class KindOf(StrEnum):
    """Kind of a job."""

    TRAINING = "training"
    EVALUATION = "eval"

    @property
    def kind(self) -> str:
        """The kind's name in the API."""
        return names.TRAINING_KIND if self is KindOf.TRAINING else names.EVAL_KIND


Name = Annotated[str, typer.Argument(help="Of the job.")]
Kind = Annotated[KindOf, typer.Option(help="Which kind of job.")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Default: the context's.")]
Context = Annotated[str | None, typer.Option(help="Of the kubeconfig; default: the current one.")]
JobFile = Annotated[Path, typer.Argument(help="File with an RLTrainingJob or RLEvalJob.")]
Changes = Annotated[list[str] | None, typer.Option("--set", help="Change a field: spec.schedule.maxSteps=3.")]
RunAt = Annotated[
    str,
    typer.Argument(help="Name or folder of a local job, or status.artifacts.uri of a job on a cluster."),
]
EndpointUrl = Annotated[str | None, typer.Option(help="Of an S3-compatible store.")]
Output = Annotated[Form, typer.Option(help="For people, or as JSON.")]


class Progress:
    """Prints a line of a job whenever its status changes."""

    def __init__(self, say: Callable[[str], None] = typer.echo, *, preflight: bool = True) -> None:
        """`preflight`: also print the results of its checks, once they are over."""
        self._say = say
        self._started = time.monotonic()
        self._line = ""
        self._checked = not preflight

    def show(self, job: Json) -> None:
        """Print the job's line if it has changed."""
        elapsed = time.monotonic() - self._started
        if (text := progress.line(job)) != self._line:
            self._say(f"{elapsed:6.0f} s  {text}")
            self._line = text
        if not self._checked and (lines := progress.preflight(job)):
            self._checked = True
            for each in lines:
                self._say(f"{elapsed:6.0f} s  {each}")


@contextmanager
def told() -> Iterator[None]:
    """Turn an error of the input or the cluster into a line and exit code 2, and Ctrl-C into 130."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except KNOWN as error:
        raise wrong(str(error)) from error


def note(text: str) -> None:
    """Print a line that is no result."""
    typer.echo(text, err=True)


def wrong(message: str) -> typer.Exit:
    """Print what is wrong. Return the exit that the command raises."""
    note(f"headway: {message}")
    return typer.Exit(WRONG)
