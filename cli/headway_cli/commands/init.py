"""`headway init`: writes a new project, which runs without any change."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from headway_cli import scaffold
from headway_cli.commands.common import Form, Output, wrong


def init(
    folder: Annotated[Path, typer.Argument(help="Folder for the project: new, or empty.")],
    template: Annotated[
        scaffold.Template,
        typer.Option(
            help="replay: tools give recorded answers. stateful: tools change a state, which is judged. "
            "verifiable: a program verifies the answer. agent-http: an agent of your own, as a service."
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(help="Name of the project and its job; default: made from the folder's name."),
    ] = None,
    output: Output = Form.TEXT,
) -> None:
    """Write a new project: environment, rows, tests, job and image. It runs as written."""
    try:
        written = scaffold.write(folder, template, name)
    except scaffold.ProjectError as error:
        raise wrong(str(error)) from error
    home = folder.absolute()
    made = [str(path.relative_to(home)) for path in written]
    if output is Form.JSON:
        typer.echo(json.dumps({"folder": str(home), "files": made}))
        return
    typer.echo("\n".join(made))
    typer.echo(f"\nnext: headway check {shlex.quote(str(folder / 'job.yaml'))}")
