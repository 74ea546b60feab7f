"""`headway cost`: shows a job's usage so far, and its cost."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from headway_cli import bill
from headway_cli.bill import Bill
from headway_cli.commands.common import (
    AnyKind,
    Context,
    EndpointUrl,
    Form,
    Namespace,
    Output,
    RunAt,
    name_of,
    reach,
    reported_errors,
)
from headway_cli.where import Named


def cost(
    run: RunAt,
    output: Output = Form.TEXT,
    base: Annotated[
        str | None, typer.Option(metavar="URI", help="The base model, if the run does not name it.")
    ] = None,
    kind: AnyKind = None,
    namespace: Namespace = None,
    context: Context = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Say what a job has used so far, what that costs, and what it was to cost."""
    with reported_errors():
        there = reach(namespace, context, endpoint_url)
        place = there.place(run)
        found: Bill
        if isinstance(place, Named):
            found = there.on_cluster(place.name, name_of(kind)).bill()
        else:
            found = bill.read(there.opened(place), base)
    typer.echo(json.dumps(bill.as_json(found), indent=2) if output is Form.JSON else bill.text(found))
