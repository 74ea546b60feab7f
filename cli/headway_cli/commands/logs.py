"""`headway logs`: shows the logs of a job's processes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Annotated

import typer

from headway_cli import closed_pipe, job_logs
from headway_cli.closed_pipe import ClosedPipeError
from headway_cli.commands.common import (
    CLOSED,
    INTERRUPTED,
    AnyKind,
    Context,
    EndpointUrl,
    Form,
    JsonLines,
    Namespace,
    RunAt,
    name_of,
    note,
    reach,
    reported_errors,
    wrong,
)
from headway_cli.log_lines import Line, Role, Wanted
from headway_cli.pod_logs import PodLogs
from headway_cli.terminal_text import without_controls
from headway_cli.where import LocalJob, Named, Stored


def logs(
    run: RunAt,
    role: Annotated[Role | None, typer.Option(help="Only logs of these processes.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until Ctrl-C.")] = False,
    tail: Annotated[
        int | None, typer.Option(min=0, help="Only this many of the last lines of each process.")
    ] = None,
    output: JsonLines = Form.TEXT,
    kind: AnyKind = None,
    namespace: Namespace = None,
    context: Context = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Show what a job's processes write, each line with its pod's name."""
    wanted = Wanted(role, tail)
    with reported_errors():
        reached = reach(namespace, context, endpoint_url)
        place = reached.place(run)
        if isinstance(place, Stored) and follow:
            raise wrong("--follow is for running jobs, and a store has only past logs; leave it out")
        if isinstance(place, Named):
            found = reached.on_cluster(place.name, name_of(kind))
            asked = job_logs.LogOptions(wanted, follow, endpoint_url, note)
            lines = job_logs.of_cluster(PodLogs(context, namespace), found.kind, found.name, asked)
        elif isinstance(place, LocalJob):
            lines = job_logs.of_local_job(place, wanted, follow)
        else:
            lines = job_logs.of_run(reached.opened(place), wanted)
        with closed_pipe.interrupted_when_reader_ends() if follow else nullcontext():
            _print(lines, output)


def _print(lines: Iterable[Line], output: Form) -> None:
    some = False
    try:
        for line in lines:
            shown = f"{line.writer}: {without_controls(line.text)}"
            typer.echo(json.dumps(line._asdict()) if output is Form.JSON else shown)
            some = True
    except ClosedPipeError:
        closed_pipe.discard_output()
        raise typer.Exit(CLOSED) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if not some:
        note("no such process has written anything")
