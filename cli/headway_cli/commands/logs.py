"""`headway logs`: what a job's processes write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from headway_api.document import Json
from headway_api.job_folder import JobFolder
from headway_cli import log_lines, stored_run, where
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
from headway_cli.runs import NoRun
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
            lines = _of_cluster(PodLogs(context, namespace), kind.kind, job, wanted, follow, endpoint_url)
        elif isinstance(place, LocalJob):
            lines = _of_local_job(place, wanted, follow)
        else:
            run = stored_run.opened(place, endpoint_url)
            lines = log_lines.of_store(run, log_lines.stems(run.job.get("kind"), run.name), wanted)
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


def _of_local_job(place: LocalJob, wanted: Wanted, follow: bool) -> Iterator[Line]:
    raw = JobFolder(place.folder).whole()
    begins = log_lines.stems(raw["kind"], raw["metadata"]["name"])
    read = log_lines.followed if follow else log_lines.of_folder
    return read(place.folder / "logs", begins, wanted)


def _of_cluster(
    there: PodLogs, kind: str, name: str, wanted: Wanted, follow: bool, endpoint_url: str | None
) -> Iterator[Line]:
    """Of its pods; of pods that are gone, what they kept in the store."""
    raw = there.job(kind, name)
    uid = raw["metadata"]["uid"]
    found = there.containers(uid, wanted)
    if not found and (uri := raw.get("status", {}).get("artifacts", {}).get("uri")) is not None:
        kept = _kept(raw, uri, wanted, endpoint_url)
        if kept or not follow:
            note(f"no such pod of {name} is there; this is the last that its processes kept in {uri}")
            yield from kept
            return
    if follow:
        yield from there.followed(kind, name, uid, wanted)
    for each in () if follow else found:
        yield from there.read(each, wanted)


def _kept(raw: Json, uri: str, wanted: Wanted, endpoint_url: str | None) -> list[Line]:
    """What a job's processes kept of their logs.

    Raises:
        NoRun: the store cannot be read from here.
    """
    url = endpoint_url or raw["spec"].get("output", {}).get("endpointUrl")
    begins = log_lines.stems(raw["kind"], raw["metadata"]["name"])
    try:
        return [*log_lines.of_store(stored_run.opened(Stored(uri), url), begins, wanted)]
    except NoRun as error:
        raise NoRun(
            f"no such pod is there, and their last logs cannot be read: {error}; name a store that this "
            "machine reaches with --endpoint-url"
        ) from error
