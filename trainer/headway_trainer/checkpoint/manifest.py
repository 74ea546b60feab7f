"""What a whole checkpoint is: the record that seals it, and names its files by digest."""

from __future__ import annotations

from dataclasses import dataclass

from headway_api.exits import JobError, Termination
from headway_api.record import Record
from headway_api.records import FileDigest, StepReport


class CheckpointManifest(Record):
    """The files of one checkpoint, and the shape of the learner that wrote them."""

    start: int
    """Of the learner that wrote them, and with them this."""
    files: list[FileDigest]
    world_size: int
    updates: int
    """Optimizer steps taken."""


class Checkpoint(Record):
    """`report.json` of a checkpoint: written once all its files are there, so a folder without is none."""

    report: StepReport
    state: CheckpointManifest


@dataclass(frozen=True)
class Fault:
    """Why the files of a checkpoint cannot be taken up; of one rank, for all of them."""

    why: str
    end: Termination
    """What a process that has no other checkpoint ends with."""


class NotWhole(Exception):
    """There is no checkpoint at `uri`, and `why`."""

    def __init__(self, uri: str, why: str) -> None:
        super().__init__(f"{uri}: {why}")
        self.uri = uri
        self.why = why


def unusable(uri: str, why: str) -> JobError:
    """What to tell whoever can mend a job that cannot resume from `uri`."""
    return JobError(
        "CheckpointUnusable",
        f"{uri} cannot be resumed from ({why}); if it stays so, set latest.json in the job's folder to an "
        "older step, one whose checkpoint holds report.json",
        permanent=False,
    )
