"""`headway doctor`: the preflight of a job with its model, on this machine, without training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from headway_api import names
from headway_api.document import Json
from headway_cli import progress
from headway_cli.commands.common import (
    FAILED,
    INTERRUPTED,
    JOBS,
    Changes,
    Form,
    Output,
    Progress,
    note,
    told,
    wrong,
)
from headway_cli.local import engine, manifest
from headway_cli.local import run as local_run

OVER: Final = ("Passed", "Failed")
"""States of a preflight that is over."""


class _Over(Exception):
    """The preflight is over: the rest of the job is not needed."""


def doctor(
    job: Annotated[Path, typer.Argument(help="File with an RLTrainingJob.")],
    environment: Annotated[
        Path | None, typer.Option(help="Folder of the environment's modules; default: the file's.")
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option(
            min=8, help="Baseline episodes, as spec.preflight.episodes: rounded up to 12 whole groups."
        ),
    ] = None,
    set_: Changes = None,
    output: Output = Form.TEXT,
) -> None:
    """Play baseline episodes with the job's model, and say what the preflight's checks make of them."""
    with told():
        document = manifest.changed(manifest.read(job), [*(set_ or []), *_wanted(episodes)])
        if document["kind"] != names.TRAINING_KIND:
            raise wrong(f"{job}: kind {document['kind']} has no baseline episodes: name an RLTrainingJob")
        where = JOBS / f"{document['metadata']['name']}-doctor"
        local_run.private()
        try:
            with local_run.opened(document, where, note, fresh=True) as stored:
                modules = (environment or job.parent).resolve()
                running = engine.Engine(stored, modules, engine.platform(engine.has_accelerator()))
                found = _until_over(running, Progress(note, preflight=False))
        except local_run.Stopped:
            raise typer.Exit(INTERRUPTED) from None
    _tell(found, output)
    if progress.is_true(found, "Failed") or _failed(found):
        raise typer.Exit(FAILED)


def _wanted(episodes: int | None) -> list[str]:
    """A preflight that ends the job if it fails: no learner starts for a job that should not train."""
    return [
        "spec.preflight.policy=Enforce",
        *([] if episodes is None else [f"spec.preflight.episodes={episodes}"]),
    ]


def _until_over(running: engine.Engine, shown: Progress) -> Json:
    last: Json = {}

    def look(job: Json) -> None:
        nonlocal last
        last = job
        shown.show(job)
        found = job.get("status", {}).get("preflight", {})
        if found.get("state") in OVER and "findings" in found:
            raise _Over

    try:
        return local_run.followed(running, look)
    except _Over:
        return last


def _failed(job: Json) -> bool:
    findings = job.get("status", {}).get("preflight", {}).get("findings", [])
    return any(each["verdict"] == "Fail" for each in findings)


def _tell(job: Json, output: Form) -> None:
    found = job.get("status", {}).get("preflight", {})
    if output is Form.JSON:
        typer.echo(json.dumps(found))
        return
    lines = progress.preflight(job)
    if not lines:  # it ended before a single episode
        lines = [f"  {each['message']}" for each in found.get("checks", []) if not each["passed"]]
        lines += [] if lines else progress.conditions(job)
    typer.echo("\n".join(lines))
    uri = job.get("status", {}).get("artifacts", {}).get("uri")
    if uri is not None:
        note(f"evidence and advice: {uri.removeprefix('file://')}/preflight.md")
