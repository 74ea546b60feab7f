"""What a run needs from the place of its job. Every method blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from headway_api.document import Json
from headway_cli.bill import Bill
from headway_cli.stored_run import StoredRun


class Job(Protocol):
    """One job. Every method raises ClusterError or RunNotFoundError if the job does not exist."""

    @property
    def kind(self) -> str:
        """`RLTrainingJob` or `RLEvalJob`."""

    @property
    def name(self) -> str: ...

    def now(self) -> Json:
        """The job with its status."""

    def still(self) -> Json | None:
        """The job once it has stopped; None while it runs.

        Raises:
            RunFailedError: the process that runs it has crashed.
        """

    def suspend(self) -> None:
        """End its processes, without waiting for their end."""

    def resume(self) -> None:
        """Resume it, and end its pause."""

    def stored(self) -> StoredRun:
        """What it has written.

        Raises:
            RunNotFoundError: nothing yet.
        """

    def bill(self) -> Bill:
        """What it has used.

        Raises:
            RunNotFoundError: nothing yet.
        """


class JobPlace(Protocol):
    """A cluster or a machine that has jobs."""

    def begin(self, job: Json, home: Path | None, *, fresh: bool) -> Job:
        """Begin a job, or continue one of this name.

        Args:
            home: folder of the job's file.
            fresh: delete what an earlier run left.
        Raises:
            ManifestError: the job or an argument is wrong.
        """

    def find(self, kind: str, name: str) -> Job:
        """An existing job.

        Raises:
            ClusterError, RunNotFoundError: no job has this kind and name; the message suggests similar
                names.
        """
