"""`headway trajectories`: a run's episodes turn by turn."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from headway_api.records import Outcome, Purpose
from headway_cli import episodes, stored_run, where
from headway_cli.commands.common import JOBS, EndpointUrl, Form, RunAt, note, told


def trajectories(
    run: RunAt,
    purpose: Annotated[Purpose, typer.Option(help="Which episodes.")] = Purpose.TRAIN,
    step: Annotated[int | None, typer.Option(help="Those of one step.")] = None,
    row: Annotated[int | None, typer.Option(help="Those of one row of the dataset.")] = None,
    outcome: Annotated[Outcome | None, typer.Option(help="Those that ended so.")] = None,
    disagree: Annotated[
        bool, typer.Option(help="Those whose reward and external score differ, furthest apart first.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="So many at most.")] = 5,
    output: Annotated[Form, typer.Option(help="For people, or an object of JSON a line.")] = Form.TEXT,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Read a run's episodes turn by turn."""
    wanted = episodes.Filter(step, outcome, row, disagree)
    with told():
        found = wanted.of(stored_run.opened(where.meant(run, JOBS), endpoint_url).groups(purpose))
    for each in found[:limit]:
        text = episodes.text(each) + "\n" if output is Form.TEXT else json.dumps(episodes.row(each))
        typer.echo(text)
    if len(found) > limit:
        note(f"{len(found) - limit} more; write --limit {len(found)} for all")
    if not found:
        note("no episode matches")
