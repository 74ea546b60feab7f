"""Finds what a run left, and reads it: in the folder of a local job, or in an artifact store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from headway_api import stored
from headway_api.exits import JobError
from headway_api.job_folder import JobFolder
from headway_api.records import GroupRecord, Purpose
from headway_api.spec.lifecycle import OutputSpec
from headway_api.store import Denied, FileStore, NotFound, Store, open_store

GROUP_FILE: Final = ".json.gz"


class NoRun(Exception):
    """There is no run there, or it cannot be read; the message says what to name instead."""


@dataclass(frozen=True)
class Run:
    """What one job has written."""

    store: Store
    root: str
    """URI of its folder."""

    def groups(self, purpose: Purpose) -> Iterator[GroupRecord]:
        """Its groups of one purpose, in the order of their names.

        Raises:
            NoRun: one cannot be read.
        """
        try:
            uris = self.store.list(f"{self.root}/trajectories/{purpose.value}/")
            yield from stored.read_each(
                self.store, sorted(uri for uri in uris if uri.endswith(GROUP_FILE)), stored.group
            )
        except (NotFound, Denied, JobError) as error:
            raise NoRun(f"{self.root}: {error}") from error


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
        uri = JobFolder(folder).whole()["status"].get("artifacts", {}).get("uri")
        if uri is None:
            raise NoRun(f"{where}: the job has written nothing yet")
        return Run(FileStore(), uri)
    if not (folder / "trajectories").is_dir():
        raise NoRun(
            f"{where} has no run: name the folder of a local job (.headway/NAME), or what "
            "status.artifacts.uri of a job on a cluster says"
        )
    return Run(FileStore(), f"file://{folder.resolve()}")
