"""`headway report` and `headway compare`: write an HTML page about one run, or about several runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from headway_analysis.report.page import comparison, reading
from headway_analysis.report.page.model import TrainingRun
from headway_api import names
from headway_cli.commands.common import (
    AnyKind,
    Context,
    EndpointUrl,
    Form,
    Namespace,
    Output,
    RunAt,
    name_of,
    note,
    reach,
    reported_errors,
    wrong,
)
from headway_cli.decoding import decoder
from headway_cli.run_page import page
from headway_cli.runs import RunNotFoundError
from headway_cli.stored_run import StoredRun, readable

PAGE: Final = Path("report.html")
COMPARED: Final = Path("compare.html")
Out = Annotated[Path, typer.Option("--out", "-o", help="File to write.")]


def report(
    run: RunAt,
    out: Out = PAGE,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Folder with tokenizer.json; default: spec.model.base, where it is a folder."),
    ] = None,
    output: Output = Form.TEXT,
    kind: AnyKind = None,
    namespace: Namespace = None,
    context: Context = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Write a run as one HTML page: curves, signals, preflight, bill and episodes."""
    with reported_errors():
        found = reach(namespace, context, endpoint_url).stored(run, name_of(kind))
        decode = decoder(tokenizer, found.base)
        with readable(found.layout.root):
            html = page(found, decode)
        _write(out, html, output)


def compare(
    run: Annotated[list[str], typer.Argument(help="Two to eight runs, each as `headway report` takes it.")],
    out: Out = COMPARED,
    output: Output = Form.TEXT,
    namespace: Namespace = None,
    context: Context = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Write the curves of several training runs on the same axes, and how their specs differ."""
    if not 2 <= len(run) <= comparison.MAX_RUNS:
        raise wrong(f"name two to {comparison.MAX_RUNS} runs; {len(run)} were named")
    with reported_errors():
        found: list[TrainingRun] = []
        read: list[StoredRun] = []
        there = reach(namespace, context, endpoint_url)
        for word in run:
            at = there.stored(word, names.TRAINING_KIND)
            if any(at.layout == each.layout for each in read):
                raise RunNotFoundError(f"{word} is named twice: name different runs")
            read.append(at)
            with readable(at.layout.root):
                found.append(reading.curves(at.files))
        _write(out, comparison.page(found), output)


def _write(out: Path, html: str, output: Form) -> None:
    data = html.encode()
    try:
        out.write_bytes(data)
    except OSError as error:
        raise wrong(f"--out {out}: {error.strerror}") from error
    if output is Form.JSON:
        typer.echo(json.dumps({"path": str(out), "bytes": len(data)}))
    else:
        note(f"{out}: {len(data) / 1e6:.1f} MB")
