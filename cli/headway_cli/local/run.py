"""Opens the folder of a local job, follows the job, and says what holds it up."""

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
from headway_cli.local.manifest import ManifestWrong
from headway_cli.local.pod import kill_all, left_over


class Stopped(Exception):
    """A person ended the command before the job's end."""


@contextmanager
def opened(
    document: Json, folder: Path, note: Callable[[str], None], *, fresh: bool = False, resume: bool = False
) -> Iterator[JobFolder]:
    """The folder of a job that is new, or that goes on. Nobody else runs it while the block lasts.

    Args:
        note: told what is left out of the job.
        fresh: throw away the job that is there.
        resume: end the pause that the job stands in.

    Raises:
        ManifestWrong: the spec is wrong, the folder is another's, or the job runs already.
    """
    folder = folder.resolve()
    made, notes = manifest.local(document, folder, manifest.utc_now())
    stored = JobFolder(folder)
    if not stored.exists() and folder.exists() and any(folder.iterdir()):
        raise ManifestWrong(f"{folder} is no job's folder and is not empty: write another with --folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ManifestWrong(f"the job of {folder} runs already: end that command first") from None
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
    """Run a job until it ends or stands still; the job as it is then. `show` gets the job at each look.

    Raises:
        Stopped: by SIGINT, SIGTERM, or a terminal that was closed.
        MachineBusy: as many jobs run here as can.
    """
    try:
        return asyncio.run(_until_end(running, show, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)))
    except asyncio.CancelledError:
        raise Stopped from None


async def _until_end(running: Engine, show: Callable[[Json], None], signals: Iterable[int]) -> Json:
    task = asyncio.current_task()
    assert task is not None
    for number in signals:
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await running.run(show)


def private() -> None:
    """What this process writes from now on, nobody else of this machine reads."""
    os.umask(0o077)
