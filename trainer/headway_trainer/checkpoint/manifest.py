"""The record that seals a checkpoint and names its files by digest."""

from __future__ import annotations

from dataclasses import dataclass

from headway_api.exits import JobError, Termination
from headway_api.record import Record
from headway_api.records import FileDigest, StepReport


class CheckpointManifest(Record):
    """The files of one checkpoint, and the shape of the learner that wrote them."""

    start: int
    """The number of the learner's start that wrote the files and this record."""
    files: list[FileDigest]
    world_size: int
    updates: int
    """Optimizer steps taken."""


class Checkpoint(Record):
    """`report.json` of a checkpoint, written after all its files. A folder without this file is not a
    checkpoint."""

    report: StepReport
    state: CheckpointManifest


@dataclass(frozen=True)
class Fault:
    """Why the files of a checkpoint cannot be loaded. If one rank has a fault, no rank loads the
    checkpoint."""

    why: str
    end: Termination
    """How the process ends if it has no other checkpoint to load."""


class IncompleteCheckpointError(Exception):
    """There is no usable checkpoint at `uri`; `why` gives the reason."""

    def __init__(self, uri: str, why: str) -> None:
        super().__init__(f"{uri}: {why}")
        self.uri = uri
        self.why = why


def unusable(uri: str, why: str) -> JobError:
    """The error for a job that cannot resume from `uri`. Its message says what a person can do."""
    return JobError(
        "CheckpointUnusable",
        f"{uri} cannot be resumed from ({why}); if this does not pass, set latest.json in the job's folder "
        "to an older step whose checkpoint has report.json",
        permanent=False,
    )
