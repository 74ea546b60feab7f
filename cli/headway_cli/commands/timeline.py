"""`headway timeline`: shows on what each step of a run spent its time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headway_analysis.report.page import reading
from headway_analysis.report.page.choice import MAX_STEPS
from headway_api import names
from headway_cli.commands.common import (
    Context,
    EndpointUrl,
    Form,
    JsonLines,
    Namespace,
    RunAt,
    note,
    reach,
    reported_errors,
    wrong,
)
from headway_cli.runs import RunNotFoundError
from headway_cli.stored_run import readable


def timeline(
    run: RunAt,
    step: Annotated[
        list[int] | None, typer.Option(help="A step to show; default: the first, the last and some between.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File for the trace, which ui.perfetto.dev opens.")
    ] = None,
    output: JsonLines = Form.TEXT,
    namespace: Namespace = None,
    context: Context = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Say where the seconds of up to eight steps went, and write them as a trace."""
    asked = {*(step or ())}
    if len(asked) > MAX_STEPS:
        raise wrong(f"--step: {len(asked)} steps are named; name at most {MAX_STEPS}")
    with reported_errors():
        found = reach(namespace, context, endpoint_url).stored(run, names.TRAINING_KIND)
        if found.evaluates:
            raise RunNotFoundError(f"{run} is an evaluation, and has no steps: name a training job")
        with readable(found.layout.root):
            read = reading.timed(found.files, asked)
    times = read.times()
    if absent := asked - read.timings.keys():
        raise wrong(f"--step: the run has no step {min(absent)} that trained a batch")
    if not times:
        note("no step says when it ended: none was trained yet, or the run is older than these times")
    for each in times:
        if output is Form.JSON:
            typer.echo(json.dumps(each.as_json()))
            continue
        typer.echo(f"step {each.step}: {each.seconds:.1f} s, {each.known:.1%} accounted for")
        for what, seconds in each.parts.items():
            typer.echo(f"  {seconds:8.2f} s  {what}")
    if out is not None:
        try:
            out.write_text(json.dumps(read.trace()))
        except OSError as error:
            raise wrong(f"--out {out}: {error.strerror}") from error
        note(f"{out}: open it at ui.perfetto.dev")
