"""`headway eval`: makes an evaluation from options, and runs or applies it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from headway_cli import eval_job
from headway_cli.cluster import Cluster
from headway_cli.commands import run
from headway_cli.commands.common import (
    JOBS,
    Context,
    Form,
    Namespace,
    Prices,
    Secrets,
    identity,
    reported_errors,
    wrong,
)
from headway_cli.commands.following import Plain
from headway_cli.eval_manifest import EvalOptions


def eval_(
    job: Annotated[
        str | None,
        typer.Option(help="A training job: its best weights, and the model before training."),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(metavar="URI", help="An unchanged model: hf://ORGANIZATION/NAME.")
    ] = None,
    candidate: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=WHAT", help="checkpoint:JOB[:best|latest|STEP], or a model's URI."),
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option("--from", help="File of a training job, for environment, agent, rows and output."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="URI", help="Rows to measure on; default: the job's test split.")
    ] = None,
    baseline: Annotated[str | None, typer.Option(help="Candidate to compare the others with.")] = None,
    must_beat: Annotated[
        str | None, typer.Option(help="Candidate that the first other candidate must beat, or the job fails.")
    ] = None,
    margin: Annotated[
        str | None,
        typer.Option(help="With --must-beat: the difference must exceed this margin, such as 0.05."),
    ] = None,
    max_rows: Annotated[
        int | None, typer.Option(min=1, help="Measure only this many rows, from the first.")
    ] = None,
    environment: Annotated[
        str | None, typer.Option(metavar="MODULE:CLASS", help="The environment's entrypoint.")
    ] = None,
    image: Annotated[str | None, typer.Option(help="The environment's image.")] = None,
    agent_turns: Annotated[int | None, typer.Option(min=1, help="Most turns of an episode.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the evaluation; default: JOB-eval.")] = None,
    print_: Annotated[bool, typer.Option("--print", help="Show the manifest, and apply nothing.")] = False,
    local: Annotated[
        bool, typer.Option(help="Run the evaluation on this machine, without a cluster.")
    ] = False,
    modules: Annotated[
        Path | None, typer.Option(help="With --local: folder of the environment's modules.")
    ] = None,
    prices: Prices = None,
    secret: Secrets = None,
    fresh: Annotated[
        bool, typer.Option(help="With --local: delete the files of an earlier run first.")
    ] = False,
    plain: Plain = False,
    output: Annotated[
        Form,
        typer.Option(help="For people, or as JSON: the job; with --print its manifest."),
    ] = Form.TEXT,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Judge models side by side on the same rows: an RLEvalJob from options."""
    of_local = {"--fresh": fresh, "--prices": prices, "--secret": secret, "--plain": plain}
    if not local and (given := [option for option, value in of_local.items() if value]):
        raise wrong(f"{given[0]} is for an evaluation on this machine: write --local too, or leave it out")
    asked = EvalOptions(
        name=name,
        job=job,
        models=model or (),
        candidates=candidate or (),
        data=data,
        baseline=baseline,
        must_beat=must_beat,
        margin=margin,
        max_rows=max_rows,
        environment=environment,
        image=image,
        agent_turns=agent_turns,
    )
    with reported_errors():
        training = eval_job.training(from_, job, JOBS if local else None, context, namespace)
        with tempfile.TemporaryDirectory(prefix="headway-") as folder:
            file = Path(folder) / "eval.yaml"
            text, document = eval_job.written(asked, training, file, local=local)
            if print_:
                typer.echo(json.dumps(document) + "\n" if output is Form.JSON else text, nl=False)
            elif local:
                home = modules or (from_.parent if from_ else Path())
                run.run(
                    file, local=True, environment=home, prices=prices, secret=secret, fresh=fresh,
                    plain=plain, output=output,
                )  # fmt: skip
            else:
                kind, place, called = Cluster(context, namespace).submit(document)
                job_there = json.dumps(identity(kind, place, called))
                typer.echo(job_there if output is Form.JSON else f"{kind} {place}/{called}")
