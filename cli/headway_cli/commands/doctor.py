"""`headway doctor`: runs a job's preflight on this machine, with the job's model or at an endpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Final

import typer

from headway_api import names
from headway_api.document import Json
from headway_api.spec.trust import PreflightSpec
from headway_cli import baseline, progress
from headway_cli.commands.common import (
    FAILED,
    HELD,
    INTERRUPTED,
    JOBS,
    OPEN,
    Changes,
    Form,
    Output,
    Prices,
    ProgressPrinter,
    Secrets,
    note,
    reported_errors,
    wrong,
)
from headway_cli.local import engine, manifest
from headway_cli.local import run as local_run
from headway_sandbox.broker.processes import walls

FAILURE: Final = "  Failed=True"
"""Beginning of the line with the condition that says why a job failed."""
OVER: Final = ("Passed", "Warned", "Skipped")
"""States of a preflight after which the learner would start. A preflight that fails ends its job instead."""


class _OverError(Exception):
    """The preflight is over: the rest of the job is not needed."""


def doctor(
    job: Annotated[Path, typer.Argument(help="File with an RLTrainingJob.")],
    environment: Annotated[
        Path | None, typer.Option(help="Folder of the environment's modules. Default: the folder of FILE.")
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option(min=8, help="Baseline episodes, as spec.preflight.episodes: whole groups, at least 12."),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Base URL of an endpoint that plays instead of the job's model. It ends with /v1.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Model at the endpoint.")] = None,
    token_env: Annotated[
        str | None,
        typer.Option(metavar="VARIABLE", help="Environment variable with the endpoint's bearer token."),
    ] = None,
    max_concurrency: Annotated[
        int | None, typer.Option(min=1, help="Most requests in flight at the endpoint; default 8.")
    ] = None,
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Most requests to the endpoint that begin in a minute.")
    ] = None,
    set_: Changes = None,
    prices: Prices = None,
    secret: Secrets = None,
    output: Output = Form.TEXT,
) -> None:
    """Play baseline episodes with the job's model or at an endpoint, and report the preflight's checks."""
    asked = baseline.Options(endpoint, model, token_env, max_concurrency, requests_per_minute)
    with reported_errors():
        played_by = baseline.chosen(asked, os.environ)
        # Only the coordinator needs the token, and gets it as a file.
        os.environ.pop(token_env or "", None)
        document = _sampling(manifest.changed(manifest.read(job), set_ or []), episodes)
        if document["kind"] != names.TRAINING_KIND:
            raise wrong(f"{job}: kind {document['kind']} has no baseline episodes: name an RLTrainingJob")
        where = JOBS / f"{document['metadata']['name']}-doctor"
        if not walls():
            note(OPEN)
        local_run.private()
        try:
            with (
                local_run.opened(document, where, note, fresh=True) as stored,
                baseline.written(played_by, where) as variables,
            ):
                manifest.lend(stored, document, prices, secret or [])
                modules = (environment or job.parent).resolve()
                machine = engine.platform(engine.has_accelerator())
                running = engine.Engine(stored, modules, machine, variables)
                found = _until_over(running, ProgressPrinter(note, preflight=False))
        except local_run.RunStoppedError:
            raise typer.Exit(INTERRUPTED) from None
    _write_result(found, output)
    _leave(found)


def _sampling(document: Json, episodes: int | None) -> Json:
    """The job with a preflight that samples episodes, and that ends the job if it fails, before a learner."""
    spec = document.get("spec")
    block = spec.get("preflight") if isinstance(spec, dict) else None
    if episodes is None and isinstance(block, dict) and block.get("episodes") == 0:
        episodes = PreflightSpec().episodes
    wanted = [] if episodes is None else [f"spec.preflight.episodes={episodes}"]
    return manifest.changed(document, ["spec.preflight.policy=Enforce", *wanted])


def _until_over(running: engine.Engine, shown: ProgressPrinter) -> Json:
    last: Json = {}

    def look(job: Json) -> None:
        nonlocal last
        last = job
        shown.show(job)
        if job.get("status", {}).get("preflight", {}).get("state") in OVER:
            raise _OverError

    try:
        return local_run.followed(running, look)
    except _OverError:
        return last


def _write_result(job: Json, output: Form) -> None:
    found = job.get("status", {}).get("preflight", {})
    uri = job.get("status", {}).get("artifacts", {}).get("uri")
    if uri is not None and "findings" in found:
        note(f"evidence and advice: {uri.removeprefix('file://')}/preflight.md")
    lines = progress.preflight(job)
    if not lines:  # the job ended before its first episode
        lines = [f"  {each['message']}" for each in found.get("checks", []) if not each["passed"]]
        lines = lines or [line for line in progress.conditions(job) if line.startswith(FAILURE)]
        if output is Form.JSON:
            note("\n".join(lines))
    typer.echo(json.dumps(found) if output is Form.JSON else "\n".join(lines))


def _leave(job: Json) -> None:
    """Exit with FAILED if the job or a check has failed, and with HELD if the preflight is not over."""
    preflight = job.get("status", {}).get("preflight", {})
    findings = preflight.get("findings", [])
    if progress.is_true(job, "Failed") or any(each["verdict"] == "Fail" for each in findings):
        raise typer.Exit(FAILED)
    if preflight.get("state") not in OVER:
        note(f"the job is not running: {progress.held_by(job)}")
        raise typer.Exit(HELD)
