"""Finds what a run left, and reads it: in the folder of a local job, or in an artifact store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from headway_api import names, stored
from headway_api.artifacts import Layout
from headway_api.exits import JobError
from headway_api.job_folder import JobFolder
from headway_api.records import GroupRecord, Purpose
from headway_api.run_files import RunFiles
from headway_api.spec.lifecycle import OutputSpec
from headway_api.store import Denied, FileStore, NotFound, Store, open_store

GROUP_FILE: Final = ".json.gz"
Json = dict[str, Any]


class NoRun(Exception):
    """There is no run there, or it cannot be read; the message says what to name instead."""


@dataclass(frozen=True)
class Run:
    """What one job has written."""

    store: Store
    root: str
    """URI of its folder."""
    job: Json | None = None
    """The job with its status, of a job's folder on this machine."""

    @property
    def files(self) -> RunFiles:
        """Its records.

        Raises:
            NoRun: the address is not one of a run.
        """
        try:
            return RunFiles(self.store, Layout.at(self.root))
        except ValueError as error:
            raise NoRun(f"{error}: name what status.artifacts.uri of the job says") from error

    def base(self) -> str | None:
        """`spec.model.base`, where it is known."""
        job = self.document() or {}
        found = job.get("spec", {}).get("model", {}).get("base")
        return found if isinstance(found, str) else None

    def evaluates(self) -> bool:
        """Whether it is of an RLEvalJob."""
        return (self.document() or {}).get("kind") == names.EVAL_KIND

    def document(self) -> Json | None:
        """Identity and spec of the job, where they are known."""
        if self.job is not None:
            return self.job
        with readable(self.root):
            return self.files.document(self.files.layout.job)

    def groups(self, purpose: Purpose) -> Iterator[GroupRecord]:
        """Its groups of one purpose, in the order of their names.

        Raises:
            NoRun: one cannot be read.
        """
        with readable(self.root):
            uris = self.store.list(f"{self.root}/trajectories/{purpose.value}/")
            yield from stored.read_each(
                self.store, sorted(uri for uri in uris if uri.endswith(GROUP_FILE)), stored.group
            )


@contextmanager
def readable(root: str) -> Iterator[None]:
    """What the store says while a run is read, as NoRun."""
    try:
        yield
    except (NotFound, Denied, JobError) as error:
        raise NoRun(f"{root}: {error}") from error


def located(where: str, endpoint_url: str | None = None) -> Run:
    """The run of a local job's folder, of a folder of artifacts, or of an s3:// address.

    Raises:
        NoRun: there is none.
    """
    if where.startswith("s3://"):
        try:
            return Run(open_store(OutputSpec(uri=where, endpoint_url=endpoint_url)), where.rstrip("/"))
        except ModuleNotFoundError as error:
            raise NoRun(f"{where}: reading buckets needs boto3: pip install headway[coordinator]") from error
        except (JobError, ValidationError) as error:
            raise NoRun(f"{where}: {error}") from error
    folder = Path(where.removeprefix("file://"))
    if JobFolder(folder).exists():
        job = JobFolder(folder).whole()
        uri = job["status"].get("artifacts", {}).get("uri")
        if uri is None:
            raise NoRun(f"{where}: the job has written nothing yet")
        return Run(FileStore(), uri, job)
    if not (folder / "trajectories").is_dir():
        raise NoRun(
            f"{where} has no run: name the folder of a local job (.headway/NAME), or what "
            "status.artifacts.uri of a job on a cluster says"
        )
    return Run(FileStore(), f"file://{folder.resolve()}")
