"""The commands of `headway`."""

from __future__ import annotations

import typer

from headway_cli.commands import cluster, report, run, trajectories

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
for command in (
    run.run,
    cluster.submit,
    cluster.watch,
    cluster.suspend,
    cluster.resume,
    trajectories.trajectories,
    report.report,
    report.compare,
):
    app.command()(command)


@app.callback()
def headway() -> None:
    """Train and judge tool-using agents."""


def main() -> None:
    """Entry point."""
    app(prog_name="headway")
