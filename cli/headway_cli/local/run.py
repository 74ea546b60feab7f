"""Opens the folder of a local job, and runs the job to its end."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headway_api.document import Json
from headway_api.job_folder import JobFolder
from headway_cli.local import manifest
from headway_cli.local.engine import Engine
from headway_cli.local.manifest import ManifestError
from headway_cli.local.pod import kill_all, left_over


class RunStoppedError(Exception):
    """A person ended the command before the job's end."""


@contextmanager
def opened(
    document: Json, folder: Path, note: Callable[[str], None], *, fresh: bool = False, resume: bool = False
) -> Iterator[JobFolder]:
    """Open the folder of a new or continued job. No other process can run the job during the block.

    Args:
        document: the job, as in its file.
        folder: the job's folder.
        note: receives messages about fields that are left out of a new job.
        fresh: delete an earlier job in the folder.
        resume: end the job's present pause.

    Raises:
        ManifestError: the spec is wrong, the folder is another job's, or the job already runs.
    """
    folder = folder.resolve()
    made, notes = manifest.local(document, folder, manifest.utc_now())
    stored = JobFolder(folder)
    if folder.exists() and not folder.is_dir():
        raise ManifestError(f"{folder} is a file: write another --folder")
    if not stored.exists() and folder.exists() and any(folder.iterdir()):
        raise ManifestError(
            f"{folder} is not the folder of a job, and is not empty: name another folder with --folder"
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = (folder.parent / f".{folder.name}.lock").open("w")
    except OSError as error:
        raise ManifestError(
            f"{error.filename or folder}: {error.strerror}: name a folder that can be written with --folder"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ManifestError(f"the job of {folder} is already running: end that command first") from None
        kill_all(left_over(folder))
        if fresh and stored.exists():
            shutil.rmtree(folder)
        if stored.exists():
            stored.write(manifest.continued(stored.whole(), made, resume=resume))
        else:
            folder.mkdir(mode=0o700, exist_ok=True)
            stored.write(made)
            for each in notes:
                note(each)
        yield stored


def followed(running: Engine, show: Callable[[Json], None]) -> Json:
    """Run a job until it ends or is held, and return it. `show` is called with the job before each plan.

    Raises:
        RunStoppedError: SIGINT, SIGTERM or a closed terminal stopped the command.
        MachineBusyError: too many jobs run on this machine.
    """
    try:
        return asyncio.run(_until_end(running, show, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)))
    except asyncio.CancelledError:
        raise RunStoppedError from None


async def _until_end(running: Engine, show: Callable[[Json], None], signals: Iterable[int]) -> Json:
    task = asyncio.current_task()
    assert task is not None
    for number in signals:
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await running.run(show)


def private() -> None:
    """Set the umask so that other users of this machine cannot read files which this process creates."""
    os.umask(0o077)
