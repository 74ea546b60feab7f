"""`headway data push`: checks rows and uploads them for a job."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from headway_cli import uploads
from headway_cli.commands.common import EndpointUrl, Form, Output, note, reported_errors

app = typer.Typer(no_args_is_help=True, help="Rows that a job trains and measures on.")


@app.callback()
def data() -> None:
    """Rows that a job trains and measures on."""


@app.command()
def push(
    files: Annotated[list[Path], typer.Argument(help="Files of rows: .jsonl, .parquet, .json or .csv.")],
    target: Annotated[str, typer.Argument(help="s3://BUCKET/PREFIX, or file:///FOLDER.")],
    model: Annotated[
        Path | None, typer.Option(help="Folder of a model, such as tiny-model, to upload beside them.")
    ] = None,
    endpoint_url: EndpointUrl = None,
    output: Output = Form.TEXT,
) -> None:
    """Check files of rows, upload them, and say what to write in the job's spec.

    A row has any columns: the environment's reset is given all of them. Nothing is uploaded if a file has
    a row that a job could not read. Credentials are those of this shell, such as AWS_ACCESS_KEY_ID.
    """
    with reported_errors():
        folder = uploads.target_of(target)
        if len({each.name for each in files}) < len(files):
            raise uploads.PushError(
                "two files have the same name: rename one, because both go into one folder"
            )
        tables = [uploads.read(each) for each in files]
        weights = None if model is None else uploads.model_of(model)
        for warning in uploads.shared(tables):
            note(f"warning: {warning}")
        store = uploads.opened(folder, endpoint_url)
        pushed = {table.path: uploads.push(store, table, folder) for table in tables}
        base = None if weights is None else uploads.push_model(store, weights, folder)
    if output is Form.JSON:
        found = [_row(table, pushed[table.path]) for table in tables]
        named = {} if base is None else {"model": {"base": base}}
        typer.echo(json.dumps({"files": found, "data": uploads.blocks(pushed)} | named))
        return
    for table in tables:
        typer.echo(_described(table, pushed[table.path]))
    typer.echo(_spec(pushed, base, endpoint_url))


def _row(table: uploads.Table, uri: str) -> dict[str, object]:
    columns = [dataclasses.asdict(column) for column in table.columns]
    return {
        "file": str(table.path),
        "uri": uri,
        "rows": table.rows,
        "bytes": table.size,
        "sha256": table.sha256,
        "columns": columns,
    }


def _described(table: uploads.Table, uri: str) -> str:
    """A text about a file: its rows, size and columns, and the URI to which it was uploaded."""
    lines = [f"{table.path}: {table.rows} rows, {table.size} bytes, sha256 {table.sha256}"]
    width = max(len(column.name) for column in table.columns)
    for column in table.columns:
        some = "" if column.rows == table.rows else f", in {column.rows} of {table.rows} rows"
        lines.append(f"  {column.name:{width}}  {' or '.join(column.kinds) or 'null'}{some}")
    return "\n".join([*lines, f"  is {uri}"])


def _spec(pushed: dict[Path, str], base: str | None, endpoint_url: str | None) -> str:
    """The lines to write in the job's spec; `base` is the URI of an uploaded model."""
    lines = ["", "write in the job's spec:", "  data:"]
    for split, block in uploads.blocks(pushed).items():
        lines.append(f"    {split}: {{uri: {block['uri']}}}")
    lines += [
        f"    # train, validation or test: {{uri: {uri}}}"
        for path, uri in pushed.items()
        if uploads.block_of(path) is None
    ]
    if base is not None:
        lines.append(f"  model: {{base: {base}}}  # beside its other fields")
    if endpoint_url is not None:
        lines.append(f"  output: {{endpointUrl: {endpoint_url}}}  # beside its uri")
    return "\n".join(lines)
