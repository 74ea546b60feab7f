"""`headway trajectories`: shows a run's episodes turn by turn."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headway_api.records import Outcome, Purpose
from headway_cli import episodes, inspect_file, task_rows
from headway_cli.commands.common import (
    AnyKind,
    Context,
    EndpointUrl,
    Namespace,
    RunAt,
    name_of,
    note,
    reach,
    reported_errors,
    wrong,
)


class EpisodeForm(StrEnum):
    """How episodes are written."""

    TEXT = "text"
    JSON = "json"
    INSPECT = "inspect"


def trajectories(
    run: RunAt,
    purpose: Annotated[
        Purpose | None,
        typer.Option(help="Which episodes; default: train, or evaluation for an evaluation."),
    ] = None,
    step: Annotated[int | None, typer.Option(help="Episodes of one step.")] = None,
    row: Annotated[int | None, typer.Option(help="Episodes of one row of the dataset.")] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Episodes of one task: a value of the data's taskColumn, or a suite."
        ),
    ] = None,
    outcome: Annotated[Outcome | None, typer.Option(help="Episodes with this outcome.")] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Episodes that ended with AgentError or InfraError.")
    ] = False,
    disagree: Annotated[
        bool, typer.Option(help="Episodes whose reward and external score differ, furthest apart first.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most this many episodes.")] = 5,
    output: Annotated[
        EpisodeForm,
        typer.Option(help="For people, one JSON object a line, or a log of Inspect AI in the file of --out."),
    ] = EpisodeForm.TEXT,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.eval", help="File of --output inspect.")
    ] = None,
    kind: AnyKind = None,
    namespace: Namespace = None,
    context: Context = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Read a run's episodes turn by turn."""
    if (output is EpisodeForm.INSPECT) != (out is not None):
        raise wrong("write --output inspect and --out FILE.eval together")
    if out is not None and out.suffix != inspect_file.ENDING:
        raise wrong(f"--out {out}: write a name that ends in {inspect_file.ENDING}")
    if failed and outcome is not None:
        raise wrong("write --failed or --outcome, not both")
    with reported_errors():
        stored = reach(namespace, context, endpoint_url).stored(run, name_of(kind))
        why = purpose or stored.purpose
        chosen = None if task is None else task_rows.task(stored, why, task)
        wanted = episodes.Filter(step, outcome, row, disagree, failed, chosen)
        found = wanted.of(stored.groups(why, lost=wanted.lost))
        if out is not None and found:
            inspect_file.write(out, stored, found[:limit], task or "")
            note(f"{out}: {len(found[:limit])} episodes; `inspect view --log-dir {out.parent}` shows them")
    for each in () if out is not None else found[:limit]:
        text = episodes.text(each) + "\n" if output is EpisodeForm.TEXT else json.dumps(episodes.row(each))
        typer.echo(text)
    if len(found) > limit:
        note(f"{len(found) - limit} more; write --limit {len(found)} for all")
    if not found:
        note("no episode matches")
