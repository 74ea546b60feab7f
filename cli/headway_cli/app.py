"""The commands of `headway`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headway_api import names
from headway_api.records import Outcome, Purpose
from headway_cli import episodes, progress, runs
from headway_cli.cluster import Cluster, ClusterError, JobGone
from headway_cli.local import engine, manifest
from headway_cli.local import run as local_run
from headway_cli.local.machine import MachineBusy
from headway_cli.local.manifest import ManifestWrong
from headway_sandbox.broker.processes import walls

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

JOBS: Final = Path(names.LOCAL_JOBS)
"""Where jobs of this machine have their folders, below the current directory."""
WRONG, FAILED, HELD, INTERRUPTED = 2, 1, 3, 130
"""Exit codes: the input is wrong; the job failed; it stands still until something is changed; Ctrl-C."""
OPEN: Final = (
    "warning: this system gives a user no namespaces, so sandboxes have this machine's network, see its "
    "processes, and can read the keys of their job (docs/local.md)"
)
Json = dict[str, Any]


class Form(StrEnum):
    """How what is found is written."""

    TEXT = "text"
    JSON = "json"


class KindOf(StrEnum):
    """Of a job."""

    TRAINING = "training"
    EVALUATION = "eval"

    @property
    def kind(self) -> str:
        """As the API has it."""
        return names.TRAINING_KIND if self is KindOf.TRAINING else names.EVAL_KIND


Name = Annotated[str, typer.Argument(help="Of the job.")]
Kind = Annotated[KindOf, typer.Option(help="Which kind of job.")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Default: the context's.")]
Context = Annotated[str | None, typer.Option(help="Of the kubeconfig; default: the current one.")]


@app.callback()
def headway() -> None:
    """Train and judge tool-using agents."""


@app.command()
def run(
    job: Annotated[Path, typer.Argument(help="File with an RLTrainingJob or RLEvalJob.")],
    local: Annotated[bool, typer.Option(help="Run it on this machine, without a cluster.")] = False,
    environment: Annotated[
        Path | None, typer.Option(help="Folder of the environment's modules; default: the file's.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the job's files go; default: .headway/NAME.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a field: spec.schedule.maxSteps=3.")
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(help="File of the price book; default: the built-in one.")
    ] = None,
    secret: Annotated[
        list[str] | None, typer.Option(help="Token of a Secret that the job names: NAME=FILE.")
    ] = None,
    fresh: Annotated[bool, typer.Option(help="Throw away what an earlier run left.")] = False,
    resume_: Annotated[
        bool, typer.Option("--resume", help="End the pause of a job that stopped at a sign of collapse.")
    ] = False,
) -> None:
    """Run a job to its end. A second run goes on where the first stopped."""
    if not local:
        raise _wrong("write --local: to run a job on a cluster, use `headway submit`")
    try:
        document = manifest.changed(manifest.read(job), set_ or [])
        where = folder or JOBS / document["metadata"]["name"]
        if not walls():
            typer.echo(OPEN, err=True)
        local_run.private()
        with local_run.opened(document, where, _note, fresh=fresh, resume=resume_) as stored:
            manifest.lend(stored, document, prices, secret or [])
            modules = (environment or job.parent).resolve()
            running = engine.Engine(stored, modules, engine.platform(engine.has_accelerator()))
            ended = local_run.followed(running, Progress().show)
    except (ManifestWrong, MachineBusy) as error:
        raise _wrong(str(error)) from error
    except local_run.Stopped:
        typer.echo(f"stopped; run it again and it goes on; its files are in {where}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    typer.echo("\n".join(progress.conditions(ended)))
    typer.echo(f"files: {where}")
    _leave(ended)


@app.command()
def trajectories(
    run: Annotated[
        str, typer.Argument(help="Folder of a local job, or status.artifacts.uri of a job on a cluster.")
    ],
    purpose: Annotated[Purpose, typer.Option(help="Which episodes.")] = Purpose.TRAIN,
    step: Annotated[int | None, typer.Option(help="Those of one step.")] = None,
    row: Annotated[int | None, typer.Option(help="Those of one row of the dataset.")] = None,
    outcome: Annotated[Outcome | None, typer.Option(help="Those that ended so.")] = None,
    disagree: Annotated[
        bool, typer.Option(help="Those whose reward and external score differ, furthest apart first.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="So many at most.")] = 5,
    output: Annotated[Form, typer.Option(help="For people, or an object of JSON a line.")] = Form.TEXT,
    endpoint_url: Annotated[str | None, typer.Option(help="Of an S3-compatible store.")] = None,
) -> None:
    """Read a run's episodes turn by turn."""
    wanted = episodes.Filter(step, outcome, row, disagree)
    try:
        found = wanted.of(runs.located(run, endpoint_url).groups(purpose))
    except runs.NoRun as error:
        raise _wrong(str(error)) from error
    for each in found[:limit]:
        text = episodes.text(each) + "\n" if output is Form.TEXT else json.dumps(episodes.row(each))
        typer.echo(text)
    if len(found) > limit:
        typer.echo(f"{len(found) - limit} more; write --limit {len(found)} for all", err=True)
    if not found:
        typer.echo("no episode matches", err=True)


@app.command()
def submit(
    job: Annotated[Path, typer.Argument(help="File with an RLTrainingJob or RLEvalJob.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a field: spec.schedule.maxSteps=3.")
    ] = None,
    follow: Annotated[bool, typer.Option("--watch", help="Follow it to its end.")] = False,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Apply a job to the cluster that kubectl points at."""
    with _told():
        document = manifest.changed(manifest.read(job), set_ or [])
        kind, place, name = Cluster(context, namespace).submit(document)
    typer.echo(f"{kind} {place}/{name}")
    if follow:
        _watch(Cluster(context, place), kind, name)


@app.command()
def watch(
    name: Name, kind: Kind = KindOf.TRAINING, namespace: Namespace = None, context: Context = None
) -> None:
    """Follow a job on a cluster to its end; the exit code says how it ended."""
    with _told():
        there = Cluster(context, namespace)
    _watch(there, kind.kind, name)


@app.command()
def suspend(
    name: Name, kind: Kind = KindOf.TRAINING, namespace: Namespace = None, context: Context = None
) -> None:
    """Stop a job's pods; what is acknowledged stays."""
    with _told():
        Cluster(context, namespace).change(kind.kind, name, {"spec": {"suspend": True}})
    typer.echo(f"{name}: spec.suspend is true; `headway resume {name}` goes on")


@app.command()
def resume(
    name: Name, kind: Kind = KindOf.TRAINING, namespace: Namespace = None, context: Context = None
) -> None:
    """Let a job go on that is suspended or paused."""
    with _told():
        there = Cluster(context, namespace)
        paused = there.job(kind.kind, name).get("status", {}).get("pause", {}).get("time")
        patch: Json = {"spec": {"suspend": False}}
        if paused is not None:
            patch["metadata"] = {"annotations": {names.ANNOTATION_RESUME: paused}}
        there.change(kind.kind, name, patch)
    typer.echo(
        f"{name}: spec.suspend is false" + ("" if paused is None else f"; the pause of {paused} is over")
    )


def _watch(there: Cluster, kind: str, name: str) -> None:
    """Print how a job goes; exits with FAILED unless it ends Complete."""
    told = Progress()
    try:
        with _told():
            for job in there.follow(kind, name):
                told.show(job)
                if progress.is_true(job, "Complete"):
                    return
                if progress.is_true(job, "Failed"):
                    typer.echo("\n".join(progress.conditions(job)))
                    raise typer.Exit(FAILED)
    except JobGone as error:
        typer.echo(f"headway: {error}", err=True)
        raise typer.Exit(FAILED) from error
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _told() -> Iterator[None]:
    """What is wrong with what was given, or with the cluster, as a line and an exit code."""
    try:
        yield
    except (ManifestWrong, ClusterError) as error:
        raise _wrong(str(error)) from error


class Progress:
    """Prints a line of a job whenever its status says something new."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._line = ""
        self._checked = False

    def show(self, job: Json) -> None:
        """The job as it is now."""
        elapsed = time.monotonic() - self._started
        if (text := progress.line(job)) != self._line:
            typer.echo(f"{elapsed:6.0f} s  {text}")
            self._line = text
        if not self._checked and (lines := progress.preflight(job)):
            self._checked = True
            for each in lines:
                typer.echo(f"{elapsed:6.0f} s  {each}")


def _leave(ended: Json) -> None:
    """Say what holds a local job up, and exit unless it is Complete."""
    if progress.is_true(ended, "Complete"):
        return
    if progress.is_true(ended, "Failed"):
        raise typer.Exit(FAILED)
    typer.echo(f"the job stands still: {progress.held_by(ended)}", err=True)
    raise typer.Exit(HELD)


def _note(text: str) -> None:
    typer.echo(text, err=True)


def _wrong(message: str) -> typer.Exit:
    typer.echo(f"headway: {message}", err=True)
    return typer.Exit(WRONG)


def main() -> None:
    """Entry point."""
    app(prog_name="headway")
