"""`headway submit`, `watch`, `suspend` and `resume`: a job on a cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from headway_api import names
from headway_api.document import Json
from headway_cli import closed_pipe, job_file, patches, progress
from headway_cli.cluster import Cluster, ClusterError, ClusterUnreachableError, JobDeletedError
from headway_cli.commands import following
from headway_cli.commands.common import (
    FAILED,
    JOBS,
    Changes,
    Context,
    Form,
    JobFile,
    JobKindOption,
    KindOf,
    Name,
    Namespace,
    identity,
    note,
    reported_errors,
)
from headway_cli.commands.common import Output as JsonOutput
from headway_cli.commands.following import Mode, Output, Plain
from headway_cli.local import manifest
from headway_cli.runs import RunNotFoundError
from headway_cli.where import is_local_job

JOB_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""Names that Kubernetes accepts for an object."""


def submit(
    job: JobFile,
    set_: Changes = None,
    follow: Annotated[bool, typer.Option("--watch", help="Follow the job to its end.")] = False,
    plain: Plain = False,
    output: Output = Form.TEXT,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Apply a job to the cluster that kubectl points at."""
    with reported_errors():
        document = manifest.changed(manifest.read(job), set_ or [])
        with _wrong_fields_first(document):
            there = Cluster(context, namespace)
        with _wrong_fields_first(document, ClusterUnreachableError):
            kind, place, name = there.submit(document)
    if output is Form.JSON:
        typer.echo(json.dumps(identity(kind, place, name)))
    else:
        typer.echo(f"{kind} {place}/{name}")
    if follow:
        with reported_errors():
            _watch(Cluster(context, place), kind, name, following.mode(output, plain=plain))


def watch(
    name: Name,
    kind: JobKindOption = KindOf.TRAINING,
    plain: Plain = False,
    output: Output = Form.TEXT,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Follow a job on a cluster to its end; the exit code says how it ended."""
    with reported_errors(), _local_named(name, context, namespace):
        _watch(Cluster(context, namespace), kind.kind, name, following.mode(output, plain=plain))


def suspend(
    name: Name,
    kind: JobKindOption = KindOf.TRAINING,
    output: JsonOutput = Form.TEXT,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Stop a job's pods; what is acknowledged stays."""
    with reported_errors(), _local_named(name, context, namespace):
        there = Cluster(context, namespace)
        there.change(kind.kind, name, patches.SUSPENSION)
    if output is Form.JSON:
        typer.echo(json.dumps({**identity(kind.kind, there.namespace, name), "suspend": True}))
    else:
        typer.echo(f"{name}: spec.suspend is true; `headway resume {name}` continues")


def resume(
    name: Name,
    kind: JobKindOption = KindOf.TRAINING,
    output: JsonOutput = Form.TEXT,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Resume a job that is suspended or paused."""
    with reported_errors(), _local_named(name, context, namespace):
        there = Cluster(context, namespace)
        patch = patches.resumption(there.job(kind.kind, name))
        there.change(kind.kind, name, patch)
    paused = patch.get("metadata", {}).get("annotations", {}).get(names.ANNOTATION_RESUME)
    if output is Form.JSON:
        change = {"suspend": False, "resumedPause": paused}
        typer.echo(json.dumps({**identity(kind.kind, there.namespace, name), **change}))
    else:
        over = "" if paused is None else f"; the pause of {paused} is over"
        typer.echo(f"{name}: spec.suspend is false{over}")


@contextmanager
def _wrong_fields_first(document: Json, unreachable: type[ClusterError] = ClusterError) -> Iterator[None]:
    """If the block finds no cluster, check the job here. A person can correct it without a cluster.

    A cluster that answers checks the job itself: it may know fields that this version does not.

    Args:
        document: the job.
        unreachable: what the block raises if there is no cluster.

    Raises:
        ManifestError: there is no cluster, and a field is wrong.
    """
    try:
        yield
    except unreachable:
        job_file.checked(document)
        raise


@contextmanager
def _local_named(name: str, context: str | None, namespace: str | None) -> Iterator[None]:
    """Explain an error of the cluster if the named job is a local job.

    Raises:
        ClusterError: no job can have that name, such as the empty value of a shell's variable.
        RunNotFoundError: the cluster gave an error, and this machine has a job of that name. With --context
            or -n a job on a cluster is meant, so the cluster's own error is raised.
    """
    if not JOB_NAME.fullmatch(name):
        raise ClusterError(f"{name!r} is no job's name: write a name of a-z, 0-9, - and ., such as my-job")
    try:
        yield
    except ClusterError as error:
        if context is None and namespace is None and is_local_job(JOBS / name):
            raise RunNotFoundError(
                f"{name} is a job of this machine: `headway run FILE --local` shows and continues it, and "
                f"Ctrl-C there stops it. Of a cluster: {error}"
            ) from error
        raise


def _watch(there: Cluster, kind: str, name: str, mode: Mode) -> None:
    """Show the progress of a job; exit with FAILED unless it ends Complete. The caller reports errors."""
    try:
        with following.shown(mode) as show, closed_pipe.interrupted_when_reader_ends():
            for job in there.follow(kind, name):
                show(job)
                if progress.is_true(job, "Complete"):
                    return
                if progress.is_true(job, "Failed"):
                    break
        if mode is Mode.LINES:  # the screen shows the conditions already
            typer.echo("\n".join(progress.conditions(job)))
    except JobDeletedError as error:
        note(f"headway: {error}")
    raise typer.Exit(FAILED)
