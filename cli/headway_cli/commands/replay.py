"""`headway replay`: trains a step of a run again, and compares the weights."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from headway_api import names
from headway_api.replay import LOG, RESULT, TERMINATION, ReplayRequest, ReplayResult
from headway_api.spec.lifecycle import OutputSpec
from headway_cli import foreground, replaying, serving
from headway_cli.commands.common import (
    FAILED,
    INTERRUPTED,
    Context,
    EndpointUrl,
    Form,
    Namespace,
    Output,
    RunAt,
    note,
    reach,
    reported_errors,
    wrong,
)
from headway_cli.replaying import config_of
from headway_cli.stored_run import StoredRun, readable
from headway_cli.where import LocalJob

LEARNER: Final = ("headway_trainer", "torch", "deepspeed")
"""Packages that the learner's replay imports."""
LOG_TAIL: Final = 2000
"""Maximum last characters of the learner's log that an error shows, if the learner gave no reason."""


def replay(
    run: RunAt,
    step: Annotated[int, typer.Option(min=0, help="The step to train again.")],
    loss: Annotated[str | None, typer.Option(metavar="NAME", help="Train with another loss.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Train with another value: spec.algorithm.kl.coefficient=0.01."),
    ] = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Begin with the model itself, not with a checkpoint.")
    ] = False,
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Key `checkpoints` of the job's Secret; a local job's is found."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Keep the new weights and the log in this folder.")
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where models are kept; default: ~/.cache/headway/serve."),
    ] = None,
    output: Output = Form.TEXT,
    namespace: Namespace = None,
    context: Context = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Train a step again from the run's files, without servers, and compare weights and metrics."""
    _require_learner()
    with reported_errors():
        there = reach(namespace, context, endpoint_url)
        place = there.place(run)
        stored = there.opened(place, names.TRAINING_KIND)
        config = config_of(stored)
        with readable(stored.layout.root):
            report = replaying.recorded_step(stored.files.steps(), step)
        changed = replaying.changed_spec(config, report, loss, set_ or [])
        if key is not None and not key.is_file():
            raise wrong(f"--key {key}: there is no such file")
        found = key or replaying.key_file(place, config)
        request = ReplayRequest(
            config=config,
            run=_output(stored, config.spec.output, endpoint_url),
            step=step,
            changed=changed,
            key=None if found is None else str(found.resolve()),
            from_start=from_start,
            models=str((cache or serving.default_cache(os.environ)).resolve()),
        )
    owned = Path(stored.layout.root.removeprefix("file://"))
    if isinstance(place, LocalJob):
        owned = place.folder
    with _folder(out, owned) as folder:
        result = _replayed(request, folder)
        if output is Form.JSON:
            typer.echo(result.model_dump_json(indent=2))
        else:
            typer.echo("\n".join(replaying.report_lines(result, stored.name)))
            if out is not None:
                typer.echo(f"\nweights: {result.weights}")
    if result.same is False and not result.changed:
        raise typer.Exit(FAILED)


def _require_learner() -> None:
    if absent := [name for name in LEARNER if importlib.util.find_spec(name) is None]:
        raise wrong(
            f"{absent[0]} is not installed, and the step is trained here: use the environment of `make venv`"
        )


def _output(stored: StoredRun, output: OutputSpec, endpoint_url: str | None) -> OutputSpec:
    """The job's output block, with the run's present URI and the store's address from `--endpoint-url`.

    The run may have been copied, so that its present URI differs from the one in the job.
    """
    there = {"uri": stored.layout.root} | ({} if endpoint_url is None else {"endpoint_url": endpoint_url})
    return output.model_copy(update=there)


@contextmanager
def _folder(out: Path | None, owned: Path) -> Iterator[Path]:
    """A new folder for the replay's files.

    Args:
        out: the folder that a person named; None for a temporary folder, which is deleted afterwards.
        owned: the run's own folder, in which `out` must not be.
    """
    if out is None:
        folder = Path(tempfile.mkdtemp(prefix="headway-replay-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    folder = out.resolve()
    if folder.is_relative_to(owned):
        raise wrong(f"--out {out}: it is in the run's own folder, where nothing is written; name another")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise wrong(f"--out {out}: it is not empty; name a new folder")
    except OSError as error:
        raise wrong(f"--out {out}: {error.strerror}") from error
    yield folder


def _replayed(request: ReplayRequest, folder: Path) -> ReplayResult:
    """Run the learner's replay in a process of its own, with its files in `folder`."""
    request.write(folder)
    termination = folder / TERMINATION
    termination.touch()
    note(f"training step {request.step} again; log: {folder / LOG}")
    argv = (sys.executable, "-u", "-m", "headway_trainer.replay", str(folder))
    environment = {**os.environ, names.ENV_TERMINATION_FILE: str(termination)}
    with (folder / LOG).open("wb") as log:
        code = foreground.run(argv, environment, log)
    if code is None:
        raise typer.Exit(INTERRUPTED)
    if code == 0:
        return ReplayResult.model_validate_json((folder / RESULT).read_bytes())
    if (why := replaying.failure_message(termination.read_bytes(), request, folder)) is not None:
        raise wrong(why)
    tail = (folder / LOG).read_text(errors="replace")[-LOG_TAIL:]
    raise wrong(f"the learner ended with exit status {code}; the end of its log:\n{tail}")
