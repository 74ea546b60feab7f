"""Shows the job that a command follows: as a screen, as lines, or as JSON."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Annotated

import typer
from rich.console import Console

from headway_api.document import Json
from headway_cli import closed_pipe, foreground, status_values
from headway_cli.closed_pipe import ClosedPipeError
from headway_cli.commands.common import CLOSED, Form, ProgressPrinter
from headway_cli.terminal import Terminal, utc_now

Show = Callable[[Json], None]
Plain = Annotated[bool, typer.Option("--plain", help="Print one line for each change, even in a terminal.")]
Output = Annotated[Form, typer.Option("--output", help="For people, or one JSON object a change.")]


class Mode(Enum):
    """How a job is shown."""

    SCREEN = auto()
    LINES = auto()
    JSON = auto()


def mode(output: Form, *, plain: bool) -> Mode:
    """JSON if `output` says so, a screen if the terminal can be redrawn and `plain` is false, else lines."""
    if output is Form.JSON:
        return Mode.JSON
    drawn = not plain and sys.stdout.isatty() and Console().is_interactive
    return Mode.SCREEN if drawn else Mode.LINES


@contextmanager
def shown(mode: Mode) -> Iterator[Show]:
    """Yield a function that shows the job's present state. Call it with the job whenever it may have changed.

    Raises:
        typer.Exit: with CLOSED, if the reader of the output ends during the block.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal's encoding lacks must not end the command.
        sys.stdout.reconfigure(errors="replace")
    try:
        if mode is Mode.SCREEN:
            with foreground.interrupts(), Terminal(Console(highlight=False)) as there:
                yield there.show
        else:
            yield _piped(JsonLines().show if mode is Mode.JSON else ProgressPrinter().show)
    except ClosedPipeError:
        closed_pipe.discard_output()
        raise typer.Exit(CLOSED) from None


class JsonLines:
    """Writes a job as a line of JSON whenever its status has changed."""

    def __init__(self) -> None:
        self._status: object = None

    def show(self, job: Json) -> None:
        """Write the job if its status has changed."""
        status = status_values.block(job, "status")
        if status == self._status:
            return
        self._status = status
        metadata = status_values.block(job, "metadata")
        row = {
            "time": utc_now().isoformat(timespec="seconds"),
            "kind": job.get("kind"),
            "namespace": metadata.get("namespace"),
            "name": metadata.get("name"),
            "status": status,
        }
        typer.echo(json.dumps(row))


def _piped(show: Show) -> Show:
    def shown(job: Json) -> None:
        try:
            show(job)
        except BrokenPipeError:
            raise ClosedPipeError from None

    return shown
