"""`headway artifacts`: what a run has written, and copies of it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from headway_api.store import READERS, Store, below
from headway_cli import artifact_list, stored_run, where
from headway_cli.artifact_list import Marks
from headway_cli.commands.common import JOBS, EndpointUrl, Form, Output, RunAt, note, told, wrong
from headway_cli.stored_run import StoredRun, readable


def artifacts(
    run: RunAt,
    get: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Copy what has such keys: 'weights/000012/*'.")
    ] = None,
    to: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where copies go.")] = None,
    output: Output = Form.TEXT,
    endpoint_url: EndpointUrl = None,
) -> None:
    """List what a run has written, or copy it."""
    if (get is None) != (to is None):
        raise wrong("write --get PATTERN and --to FOLDER together")
    with told():
        found = stored_run.opened(where.meant(run, JOBS), endpoint_url)
        root = found.layout.root
        with readable(root):
            keys = sorted(uri.removeprefix(f"{root}/") for uri in found.store.list(root))
        if get is not None and to is not None:
            _copy(found, keys, get, to)
            return
        sizes = _sizes(found.store, root, keys)
        marks = _marks(found)
    contents = artifact_list.contents(root, sizes)
    if output is Form.JSON:
        typer.echo(json.dumps(artifact_list.as_json(contents, marks), indent=2))
    else:
        typer.echo(artifact_list.text(contents, marks))


def _marks(run: StoredRun) -> Marks:
    kept = run.weights()
    return Marks(run.best(), kept[-1] if kept else None, run.latest())


def _sizes(store: Store, root: str, keys: list[str]) -> dict[str, int]:
    """Bytes of each object."""
    with readable(root), ThreadPoolExecutor(READERS) as pool:
        sizes = pool.map(lambda key: store.size(f"{root}/{key}"), keys)
        return dict(zip(keys, sizes, strict=True))


def _copy(run: StoredRun, keys: list[str], pattern: str, folder: Path) -> None:
    """Copy what matches below a folder, each under its key.

    Raises:
        NoRun: a key would leave the folder, or the store cannot be read.
    """
    chosen = artifact_list.matching(keys, pattern)
    if not chosen:
        first = sorted({key.partition("/")[0] for key in keys})
        raise wrong(f"--get {pattern}: nothing has such a key; at the top there are {', '.join(first)}")
    root = run.layout.root
    with readable(root):
        places = [(key, below(folder, key)) for key in chosen]
    for key, path in places:
        with readable(root):
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.part")
            run.store.download(f"{root}/{key}", part)
            part.replace(path)
        typer.echo(str(path))
    note(f"{len(chosen)} files copied to {folder}")
