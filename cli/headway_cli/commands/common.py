"""Exit codes, options and error messages that several commands use."""

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
from headway_cli.expected_errors import EXPECTED_ERRORS
from headway_cli.reach import Reach

JOBS: Final = Path(names.LOCAL_JOBS)
"""Folder with the folders of local jobs, below the current directory."""
WRONG, FAILED, HELD, INTERRUPTED, CLOSED = 2, 1, 3, 130, 141
"""Exit codes. WRONG: the input is wrong. FAILED: the job failed. HELD: the job is held until somebody changes
something. INTERRUPTED: Ctrl-C. CLOSED: the reader of the output ended while the command followed a job."""


OPEN: Final = (
    "warning: this system gives a user no namespaces, so sandboxes use this machine's network, see its "
    "processes, and can read their job's keys (docs/local.md)"
)
"""Warning if environments run on this machine without the isolation of user namespaces."""


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


Name = Annotated[str, typer.Argument(help="Name of the job.")]
JobKindOption = Annotated[KindOf, typer.Option(help="Which kind of job.")]
AnyKind = Annotated[KindOf | None, typer.Option(help="Which kind of job on a cluster; default: either.")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Default: the context's.")]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig; default: the current one.")]
JobFile = Annotated[Path, typer.Argument(help="File with an RLTrainingJob or RLEvalJob.")]
Changes = Annotated[list[str] | None, typer.Option("--set", help="Change a field: spec.schedule.maxSteps=3.")]
Prices = Annotated[Path | None, typer.Option(help="File of the price book; default: the built-in one.")]
Secrets = Annotated[
    list[str] | None, typer.Option("--secret", help="Token of a Secret that the job names: NAME=FILE.")
]
RunAt = Annotated[
    str,
    typer.Argument(
        help="A local job (.headway/NAME or NAME), a job on a cluster, or its status.artifacts.uri."
    ),
]
EndpointUrl = Annotated[str | None, typer.Option(help="Address of an S3-compatible store.")]
Output = Annotated[Form, typer.Option(help="For people, or as JSON.")]
JsonLines = Annotated[Form, typer.Option(help="For people, or one JSON object a line.")]


def reach(namespace: str | None, context: str | None, endpoint_url: str | None = None) -> Reach:
    """Access to the local jobs, the cluster's jobs and the stored runs that an argument may name."""
    return Reach(JOBS, context, namespace, endpoint_url)


def identity(kind: str, namespace: str, name: str) -> Json:
    """Kind, namespace and name of a job on a cluster, as a JSON object."""
    return {"kind": kind, "namespace": namespace, "name": name}


def name_of(kind: KindOf | None) -> str | None:
    """The kind's name in the API; None: either kind."""
    return None if kind is None else kind.kind


class ProgressPrinter:
    """Prints a line of a job whenever its status changes."""

    def __init__(self, say: Callable[[str], None] = typer.echo, *, preflight: bool = True) -> None:
        """Create a printer.

        Args:
            say: prints a line.
            preflight: also print the results of the preflight's checks, once it is over.
        """
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
def reported_errors() -> Iterator[None]:
    """Turn errors of the input or the cluster into a message and exit code 2, and Ctrl-C into 130."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except EXPECTED_ERRORS as error:
        raise wrong(str(error)) from error


def note(text: str) -> None:
    """Print a line that is not a result, to stderr."""
    typer.echo(text, err=True)


def wrong(message: str) -> typer.Exit:
    """Print what is wrong to stderr. Return the `typer.Exit` that the command must raise."""
    note(f"headway: {message}")
    return typer.Exit(WRONG)
