"""The commands of `headway`."""

from __future__ import annotations

import typer

from headway_cli.commands import (
    artifacts,
    check,
    cluster,
    cost,
    estimate,
    init,
    logs,
    report,
    run,
    serve,
    trajectories,
)
from headway_cli.commands import eval as evaluation

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
for command in (
    init.init,
    check.check,
    run.run,
    cluster.submit,
    cluster.watch,
    cluster.suspend,
    cluster.resume,
    trajectories.trajectories,
    report.report,
    report.compare,
    estimate.estimate,
    cost.cost,
    logs.logs,
    artifacts.artifacts,
    serve.serve,
):
    app.command()(command)
app.command("eval")(evaluation.eval_)


@app.callback()
def headway() -> None:
    """Train and judge tool-using agents."""


def main() -> None:
    """Entry point."""
    app(prog_name="headway")
