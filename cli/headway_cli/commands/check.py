"""`headway check`: a job and its environment, without a model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from headway_analysis.preflight.definition import Finding
from headway_api.document import Json
from headway_cli import checking
from headway_cli.checking import text
from headway_cli.checking.episodes import to_json
from headway_cli.commands.common import FAILED, INTERRUPTED, Changes, Form, Output, reported_errors, wrong
from headway_cli.local import manifest

ROWS: Final = 16


def check(
    job: Annotated[Path, typer.Argument(help="File with an RLTrainingJob or RLEvalJob.")] = Path("job.yaml"),
    environment: Annotated[
        Path | None, typer.Option(help="Folder of the environment's modules. Default: the folder of FILE.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Training rows that episodes are played on.")] = ROWS,
    set_: Changes = None,
    output: Output = Form.TEXT,
) -> None:
    """Check a job and its environment without a model: spec, rows, tests, episodes, reward, score, speed."""
    with reported_errors():
        document = manifest.changed(manifest.read(job), set_ or [])
    folder = (environment or job.parent).resolve()
    if not folder.is_dir():
        raise wrong(f"--environment {environment}: there is no such folder: write the folder of its modules")
    found: list[Finding] = []
    try:
        for finding in checking.findings(document, folder, rows):
            found.append(finding)
            if output is Form.TEXT:
                typer.echo("\n".join(text.lines(finding, text.width())))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    typer.echo(json.dumps(_result(document, found)) if output is Form.JSON else f"\n{text.summary(found)}")
    if any(finding.verdict == "Fail" for finding in found):
        raise typer.Exit(FAILED)


def _result(document: Json, found: Sequence[Finding]) -> Json:
    return {
        "job": document["metadata"]["name"],
        "verdicts": dict(Counter(finding.verdict for finding in found)),
        "checks": [to_json(finding) for finding in found],
    }
