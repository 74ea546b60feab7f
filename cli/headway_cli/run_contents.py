"""Lists the objects that a run has written to its store."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from headway_api.store import READERS
from headway_cli import artifact_list
from headway_cli.artifact_list import Contents, Marks
from headway_cli.stored_run import StoredRun, readable


def keys(run: StoredRun) -> list[str]:
    """Keys of all objects of a run, relative to the run's folder, in order.

    Raises:
        RunNotFoundError: the store cannot be read.
    """
    root = run.layout.root
    with readable(root):
        return sorted(uri.removeprefix(f"{root}/") for uri in run.store.list(root))


def read(run: StoredRun, of: Sequence[str]) -> tuple[Contents, Marks]:
    """The kinds and sizes of a run's objects, and which steps are the best and the newest.

    Args:
        run: the run.
        of: keys of the objects, from `keys`.

    Raises:
        RunNotFoundError: the store cannot be read.
    """
    root, kept = run.layout.root, run.weights()
    with readable(root), ThreadPoolExecutor(READERS) as pool:
        sizes = [*pool.map(lambda key: run.store.size(f"{root}/{key}"), of)]
    marks = Marks(run.best(), kept[-1] if kept else None, run.latest())
    return artifact_list.contents(root, dict(zip(of, sizes, strict=True))), marks
