"""The record that seals a checkpoint and names its files by digest."""

from __future__ import annotations

from dataclasses import dataclass

from headway_api.exits import JobError, Termination
from headway_api.record import Record
from headway_api.records import FileDigest, StepReport


class CheckpointManifest(Record):
    """The files of one checkpoint, and the shape of the learner that wrote them."""

    start: int
    """The number of the learner's start that wrote them, and this record."""
    files: list[FileDigest]
    world_size: int
    updates: int
    """Optimizer steps taken."""


class Checkpoint(Record):
    """`report.json` of a checkpoint, written once all its files are there. A folder without it is no
    checkpoint."""

    report: StepReport
    state: CheckpointManifest


@dataclass(frozen=True)
class Fault:
    """Why the files of a checkpoint cannot be loaded; one rank's fault applies to all."""

    why: str
    end: Termination
    """The termination of a process that has no other checkpoint."""


class IncompleteCheckpointError(Exception):
    """There is no checkpoint at `uri`; `why` explains."""

    def __init__(self, uri: str, why: str) -> None:
        super().__init__(f"{uri}: {why}")
        self.uri = uri
        self.why = why


def unusable(uri: str, why: str) -> JobError:
    """The error for a job that cannot resume from `uri`, with what a person can do."""
    return JobError(
        "CheckpointUnusable",
        f"{uri} cannot be resumed from ({why}); if this does not pass, set latest.json in the job's folder "
        "to an older step whose checkpoint has report.json",
        permanent=False,
    )
