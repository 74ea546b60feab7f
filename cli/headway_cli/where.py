"""Decides what an argument of the command line names: a local job, a stored run, or a job on a cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headway_cli import near_names
from headway_cli.local.manifest import NAME
from headway_cli.runs import RunNotFoundError

ADDRESSES: Final = ("s3://", "file://")


@dataclass(frozen=True)
class LocalJob:
    """A job that ran on this machine."""

    folder: Path


@dataclass(frozen=True)
class Stored:
    """A run's files in an artifact store."""

    uri: str
    """URI of the run's folder."""


@dataclass(frozen=True)
class Named:
    """A word that may be the name of a job on a cluster."""

    name: str


RunPlace = LocalJob | Stored | Named


def place_named(word: str, jobs: Path) -> RunPlace:
    """The place that an argument names.

    Args:
        word: a folder, the URI of a stored run, or the name of a job.
        jobs: folder with the folders of local jobs. A local job of that name comes before a job on a cluster.

    Raises:
        RunNotFoundError: the argument is none of these.
    """
    if word.startswith("s3://"):
        if not word.strip("/").removeprefix("s3:"):
            raise RunNotFoundError(f"{word}: the bucket is missing: write s3://BUCKET/PREFIX")
        return Stored(word.rstrip("/"))
    path = Path(word.removeprefix("file://"))
    for folder in (path, jobs / path):
        if is_local_job(folder):
            return LocalJob(folder.resolve())
    if path.is_dir():
        return Stored(f"file://{path.resolve()}")
    if NAME.fullmatch(word):
        return Named(word)
    known = (each.name for each in local_jobs(jobs)) if path.parent == jobs else ()
    hint = near_names.question(path.name, known) or (
        "name the folder of a local job (.headway/NAME), a job on a cluster, or its status.artifacts.uri"
    )
    raise RunNotFoundError(f"{word} does not exist: {hint}")


def local_jobs(jobs: Path) -> list[Path]:
    """The folders of local jobs in the folder `jobs`."""
    return [each for each in jobs.glob("*") if is_local_job(each)]


def is_local_job(folder: Path) -> bool:
    """Whether the local engine has run a job in a folder.

    A folder of stored files has a job.json too, but of another form: the job's identity and spec, as its
    processes read them.
    """
    try:
        found = json.loads((folder / "job.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and isinstance(found.get("metadata"), dict)
