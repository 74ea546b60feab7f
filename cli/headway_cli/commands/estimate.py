"""`headway estimate`: estimates a job's cost before it is applied."""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from headway_api import names
from headway_api.document import Json
from headway_api.job_folder import JobFolder
from headway_api.spec.training import RLTrainingJob
from headway_cli import job_file, where
from headway_cli.cluster import Cluster, ClusterError
from headway_cli.commands.common import (
    JOBS,
    Changes,
    Context,
    Form,
    JobFile,
    Namespace,
    Output,
    note,
    reported_errors,
)
from headway_cli.local import manifest
from headway_cli.local.manifest import ManifestError


def estimate(
    job: JobFile,
    set_: Changes = None,
    prices: Annotated[
        Path | None, typer.Option(help="File of the price book; default: the built-in one.")
    ] = None,
    environment: Annotated[
        Path | None, typer.Option(help="Folder of the environment's modules. Default: the folder of FILE.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Folder of the tokenizer, if the job's own is not available.")
    ] = None,
    training: Annotated[
        list[Path] | None, typer.Option(help="File of a training job that an evaluation's candidate names.")
    ] = None,
    episode: Annotated[
        bool,
        typer.Option("--episode/--no-episode", help="Begin an episode here, to see how long a prompt is."),
    ] = True,
    output: Output = Form.TEXT,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Say what a job will use and cost: low, likely and high, by its rows, prompts and limits."""
    # These modules take seconds to import. Other commands should not have to wait for that.
    from headway_cli import estimate_text, price_before

    notes: list[str] = []
    with reported_errors(), tempfile.TemporaryDirectory(prefix="headway-") as cache:
        document = manifest.changed(manifest.read(job), set_ or [])
        checked, book = job_file.checked(document), job_file.book_of(prices)
        _note_book(document, notes, given=prices is not None)
        modules = (environment or job.parent).resolve() if episode else None
        here = price_before.Here(modules, Path(cache), model, datetime.now(UTC), notes.append)
        if isinstance(checked, RLTrainingJob):
            found = price_before.of_training(checked, book, here)
        else:
            known = [manifest.read(path) for path in training or []]
            place = namespace or document["metadata"].get("namespace")
            found = price_before.of_evaluation(
                checked, book, here, lambda name: _trained(name, known, context, place)
            )
    if output is Form.JSON:
        typer.echo(json.dumps(estimate_text.as_json(found.made, book, found.plays, notes), indent=2))
        return
    typer.echo(estimate_text.text(found.made, book, found.plays))
    for each in notes:
        note(each)


def _note_book(document: Json, notes: list[str], *, given: bool) -> None:
    name = (document.get("spec") or {}).get("priceBook")
    if name is not None and not given:
        notes.append(
            f"spec.priceBook names the ConfigMap {name}; these are the built-in prices: write --prices FILE "
            f"with its {names.PRICES_KEY}"
        )


def _trained(name: str, known: list[Json], context: str | None, namespace: str | None) -> Json:
    """The training job called `name`: a local job, else one of the jobs `known`, else a job on the cluster.

    Raises:
        ManifestError: there is no such job in any of these places.
    """
    if where.is_local_job(JOBS / name):
        return JobFolder(JOBS / name).whole()
    for each in known:
        if (each["kind"], each["metadata"]["name"]) == (names.TRAINING_KIND, name):
            return each
    try:
        return Cluster(context, namespace).job(names.TRAINING_KIND, name)
    except ClusterError as error:
        raise ManifestError(
            f"a candidate names the training job {name}: write --training FILE of it; it is not in {JOBS}, "
            f"and {error}"
        ) from error
