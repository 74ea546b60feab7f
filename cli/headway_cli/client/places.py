"""What a run asks of where its job is. Everything blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from headway_api.document import Json
from headway_cli.bill import Bill
from headway_cli.stored_run import StoredRun


class Job(Protocol):
    """One job. Every method raises ClusterError or NoRun where the job is not there."""

    @property
    def kind(self) -> str:
        """`RLTrainingJob` or `RLEvalJob`."""

    @property
    def name(self) -> str: ...

    def now(self) -> Json:
        """With its status."""

    def still(self) -> Json | None:
        """The job once it does not go on by itself; None while it does.

        Raises:
            RunFailed: what runs it has crashed.
        """

    def suspend(self) -> None:
        """Have its processes ended. Does not wait for their end."""

    def resume(self) -> None:
        """Let it go on, and end its pause."""

    def stored(self) -> StoredRun:
        """What it has written.

        Raises:
            NoRun: nothing yet.
        """

    def bill(self) -> Bill:
        """What it has used.

        Raises:
            NoRun: nothing yet.
        """


class Place(Protocol):
    """Where jobs are."""

    def begin(self, job: Json, home: Path | None, *, fresh: bool) -> Job:
        """Begin a job, or go on with one of this name.

        Args:
            home: folder of the job's file.
            fresh: throw away what an earlier run left.

        Raises:
            ManifestWrong: the job or an argument is wrong.
        """

    def find(self, kind: str, name: str) -> Job:
        """A job that is there.

        Raises:
            ClusterError, NoRun: there is none of this kind and name; near ones are told.
        """
