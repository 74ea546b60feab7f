"""The interface that jobs on a cluster and jobs on this machine implement. Every method blocks."""

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

    def job_if_stopped(self) -> Json | None:
        """The job if it has stopped; None while it runs.

        Raises:
            RunFailedError: the process that ran the job on this machine has crashed.
        """

    def suspend(self) -> None:
        """End the job's processes, without waiting for their end."""

    def resume(self) -> None:
        """Resume the job, and end its pause."""

    def stored(self) -> StoredRun:
        """The files that the job has written.

        Raises:
            RunNotFoundError: the job has written nothing yet.
        """

    def bill(self) -> Bill:
        """The job's usage and its cost.

        Raises:
            RunNotFoundError: the job has used nothing yet.
        """


class JobPlace(Protocol):
    """A place where jobs run: a namespace of a cluster, or a folder of this machine."""

    def begin(self, job: Json, home: Path | None, *, fresh: bool) -> Job:
        """Begin a job, or continue an existing job of its name.

        Args:
            job: the job, as in its file.
            home: folder of the job's file; None if the job came from no file.
            fresh: delete what an earlier run of that name left.

        Raises:
            ManifestError: the job or an argument is wrong.
        """

    def find(self, kind: str, name: str) -> Job:
        """An existing job.

        Raises:
            ClusterError, RunNotFoundError: no job has this kind and name; the message suggests similar
                names.
        """
