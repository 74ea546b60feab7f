"""`headway cost`: what a job has used so far, and what that costs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from headway_cli import bill, stored_run, where
from headway_cli.bill import Bill
from headway_cli.cluster import Cluster
from headway_cli.commands.common import (
    JOBS,
    Context,
    EndpointUrl,
    Form,
    Kind,
    KindOf,
    Namespace,
    Output,
    told,
)
from headway_cli.where import Named


def cost(
    job: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_NAME",
            help="A local job (.headway/NAME or NAME), a job on a cluster, or its status.artifacts.uri.",
        ),
    ],
    output: Output = Form.TEXT,
    base: Annotated[
        str | None, typer.Option(metavar="URI", help="The base model, where the run does not say it.")
    ] = None,
    kind: Kind = KindOf.TRAINING,
    namespace: Namespace = None,
    context: Context = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Say what a job has used so far, what that costs, and what it was to cost."""
    with told():
        on_cluster = namespace is not None or context is not None
        place = Named(job) if on_cluster else where.meant(job, JOBS)
        found: Bill
        if isinstance(place, Named):
            found = bill.from_status(Cluster(context, namespace).job(kind.kind, place.name).get("status", {}))
        else:
            found = bill.read(stored_run.opened(place, endpoint_url), base)
    typer.echo(json.dumps(bill.as_json(found), indent=2) if output is Form.JSON else bill.text(found))
