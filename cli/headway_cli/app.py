"""The commands of `headway`."""

from __future__ import annotations

import typer

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

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
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


@app.callback()
def headway() -> None:
    """Train and judge tool-using agents."""


def main() -> None:
    """Entry point."""
    app(prog_name="headway")
