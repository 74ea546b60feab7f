"""The commands of `headway`."""

from __future__ import annotations

import io
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from headway_cli.command_group import CommandGroup
from headway_cli.commands import (
    artifacts,
    check,
    cluster,
    cost,
    data,
    doctor,
    estimate,
    image,
    init,
    logs,
    mcp,
    replay,
    report,
    run,
    serve,
    timeline,
    tiny_model,
    trajectories,
)
from headway_cli.commands import eval as evaluation
from headway_cli.commands.common import CLOSED

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, pretty_exceptions_enable=False)
for command in (
    init.init,
    check.check,
    doctor.doctor,
    tiny_model.tiny_model,
    image.image,
    run.run,
    cluster.submit,
    cluster.watch,
    cluster.suspend,
    cluster.resume,
    trajectories.trajectories,
    report.report,
    report.compare,
    timeline.timeline,
    replay.replay,
    estimate.estimate,
    cost.cost,
    logs.logs,
    artifacts.artifacts,
    serve.serve,
    mcp.mcp,
):
    app.command()(command)
app.command("eval")(evaluation.eval_)
app.add_typer(data.app, name="data")


def _version(context: typer.Context, asked: bool) -> None:
    if asked and not context.resilient_parsing:  # set while a shell asks for completions: print nothing then
        typer.echo(f"headway {version('headway')}")
        raise typer.Exit


@app.callback()
def headway(
    version_: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train and judge tool-using agents."""


def main() -> None:
    """Entry point."""
    output = sys.stdout
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # an episode may have letters that a terminal lacks
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="headway")
    except SystemExit as ended:
        # If the output's reader has ended, Typer replaces `sys.stdout` and exits with 1. Rich, which writes
        # the help texts, exits without replacing it.
        if sys.stdout is not output or isinstance(ended.__context__, BrokenPipeError):
            sys.exit(CLOSED)
        raise
