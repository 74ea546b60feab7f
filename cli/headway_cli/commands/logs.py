"""`headway logs`: what a job's processes write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from headway_cli import job_logs, stored_run, where
from headway_cli.commands.common import (
    INTERRUPTED,
    JOBS,
    Context,
    EndpointUrl,
    Kind,
    KindOf,
    Namespace,
    note,
    told,
    wrong,
)
from headway_cli.log_lines import Line, Role, Wanted
from headway_cli.pod_logs import PodLogs
from headway_cli.where import LocalJob, Named, Stored

JobOrRun = Annotated[
    str,
    typer.Argument(
        metavar="NAME_OR_RUN",
        help="A local job (.headway/NAME or NAME), a job on a cluster, or its status.artifacts.uri.",
    ),
]


def logs(
    job: JobOrRun,
    role: Annotated[Role | None, typer.Option(help="Of these processes alone.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="The last so many lines of each process.")] = None,
    kind: Kind = KindOf.TRAINING,
    namespace: Namespace = None,
    context: Context = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Show what a job's processes write, each line with its pod's name."""
    wanted = Wanted(role, tail)
    with told():
        on_cluster = namespace is not None or context is not None
        place = Named(job) if on_cluster else where.meant(job, JOBS)
        if isinstance(place, Stored) and follow:
            raise wrong("--follow is of jobs that run: a store has what processes kept; leave it out")
        if isinstance(place, Named):
            there = PodLogs(context, namespace)
            asked = job_logs.Asked(wanted, follow, endpoint_url, note)
            lines = job_logs.of_cluster(there, kind.kind, job, asked)
        elif isinstance(place, LocalJob):
            lines = job_logs.of_local_job(place, wanted, follow)
        else:
            lines = job_logs.of_run(stored_run.opened(place, endpoint_url), wanted)
        _print(lines)


def _print(lines: Iterable[Line]) -> None:
    some = False
    try:
        for writer, text in lines:
            typer.echo(f"{writer}: {text}")
            some = True
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if not some:
        note("no such process has written anything")
