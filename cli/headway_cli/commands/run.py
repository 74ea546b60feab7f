"""`headway run`: runs a job on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway_api.document import Json
from headway_cli import progress
from headway_cli.commands import following
from headway_cli.commands.common import (
    FAILED,
    HELD,
    INTERRUPTED,
    JOBS,
    OPEN,
    Changes,
    Form,
    JobFile,
    Prices,
    Secrets,
    note,
    reported_errors,
    wrong,
)
from headway_cli.commands.following import Mode, Output, Plain
from headway_cli.local import engine, manifest
from headway_cli.local import run as local_run
from headway_sandbox.broker.processes import walls


def run(
    job: JobFile,
    local: Annotated[bool, typer.Option(help="Run the job on this machine, without a cluster.")] = False,
    environment: Annotated[
        Path | None, typer.Option(help="Folder of the environment's modules. Default: the folder of FILE.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the job's files go; default: .headway/NAME.")
    ] = None,
    set_: Changes = None,
    prices: Prices = None,
    secret: Secrets = None,
    fresh: Annotated[bool, typer.Option(help="Delete the files of an earlier run first.")] = False,
    resume_: Annotated[
        bool, typer.Option("--resume", help="End the pause of a job that stopped at a signal.")
    ] = False,
    plain: Plain = False,
    output: Output = Form.TEXT,
) -> None:
    """Run a job to its end. A second run continues where the first stopped."""
    if not local:
        raise wrong("write --local: to run a job on a cluster, use `headway submit`")
    mode = following.mode(output, plain=plain)
    with reported_errors():
        document = manifest.changed(manifest.read(job), set_ or [])
        where = folder or JOBS / document["metadata"]["name"]
        if not walls():
            note(OPEN)
        local_run.private()
        try:
            with local_run.opened(document, where, note, fresh=fresh, resume=resume_) as stored:
                manifest.lend(stored, document, prices, secret or [])
                modules = (environment or job.parent).resolve()
                running = engine.Engine(stored, modules, engine.platform(engine.has_accelerator()))
                with following.shown(mode) as show:
                    ended = local_run.followed(running, show)
        except local_run.RunStoppedError:
            note(f"stopped; run it again to continue; its files are in {where}")
            raise typer.Exit(INTERRUPTED) from None
    if mode is Mode.LINES:  # the screen already shows the conditions
        typer.echo("\n".join(progress.conditions(ended)))
    if mode is not Mode.JSON:
        typer.echo(f"files: {where}")
    _leave(ended)


def _leave(ended: Json) -> None:
    """Return if the job is Complete. Exit with FAILED if it has failed, else say what holds it and exit with
    HELD."""
    if progress.is_true(ended, "Complete"):
        return
    if progress.is_true(ended, "Failed"):
        note("once its cause is corrected, --fresh deletes this job and runs it again")
        raise typer.Exit(FAILED)
    note(f"the job is not running: {progress.held_by(ended)}")
    raise typer.Exit(HELD)
