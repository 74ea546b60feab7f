"""`headway artifacts`: what a run has written, and copies of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headway_api.store import below
from headway_cli import artifact_list, run_contents
from headway_cli.commands.common import (
    AnyKind,
    Context,
    EndpointUrl,
    Form,
    Namespace,
    Output,
    RunAt,
    name_of,
    note,
    reach,
    reported_errors,
    wrong,
)
from headway_cli.stored_run import StoredRun, readable


def artifacts(
    run: RunAt,
    get: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Copy files whose keys match: 'weights/000012/*'.")
    ] = None,
    to: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where copies go.")] = None,
    output: Output = Form.TEXT,
    kind: AnyKind = None,
    namespace: Namespace = None,
    context: Context = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """List what a run has written, or copy it."""
    if (get is None) != (to is None):
        raise wrong("write --get PATTERN and --to FOLDER together")
    with reported_errors():
        found = reach(namespace, context, endpoint_url).stored(run, name_of(kind))
        keys = run_contents.keys(found)
        if get is not None and to is not None:
            _copy(found, keys, get, to, output)
            return
        contents, marks = run_contents.read(found, keys)
    if output is Form.JSON:
        typer.echo(json.dumps(artifact_list.as_json(contents, marks), indent=2))
    else:
        typer.echo(artifact_list.text(contents, marks))


def _copy(run: StoredRun, keys: list[str], pattern: str, folder: Path, output: Form) -> None:
    """Copy the objects whose keys match into a folder, each to the path of its key.

    Raises:
        RunNotFoundError: a key's path would leave the folder, or the store cannot be read.
    """
    chosen = artifact_list.matching(keys, pattern)
    if not chosen:
        first = sorted({key.partition("/")[0] for key in keys})
        raise wrong(f"--get {pattern}: no key matches; the top level has {', '.join(first)}")
    root = run.layout.root
    with readable(root):
        places = [(key, below(folder, key)) for key in chosen]
    for key, path in places:
        with readable(root):
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.part")
            run.store.download(f"{root}/{key}", part)
            part.replace(path)
        typer.echo(json.dumps({"key": key, "path": str(path)}) if output is Form.JSON else str(path))
    note(f"{len(chosen)} files copied to {folder}")
