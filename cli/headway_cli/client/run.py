"""One job as a Python object: its status, metrics, episodes and bill."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from headway_analysis.report.page import reading
from headway_api.document import Json
from headway_api.records import GroupRecord, Outcome, Purpose
from headway_api.run_files import RunFiles
from headway_api.status import RLEvalJobStatus, RLTrainingJobStatus
from headway_cli import episodes, run_page, task_rows
from headway_cli.bill import Bill
from headway_cli.client import frames, outcome
from headway_cli.client.places import Job
from headway_cli.client.waiting import Waiting
from headway_cli.decoding import decoder
from headway_cli.episodes import Filter, Shown
from headway_cli.local.manifest import KINDS
from headway_cli.runs import RunNotFoundError
from headway_cli.stored_run import readable
from headway_operator.plan.reading import parse_status

if TYPE_CHECKING:
    from pandas import DataFrame

PAGE = Path("report.html")
Status = TypeVar("Status", bound=RLTrainingJobStatus | RLEvalJobStatus)


@dataclass(frozen=True, repr=False)
class Trajectory(Shown):
    """An episode, with purpose, step and row of its group. `str(trajectory)` is its conversation as text."""

    @property
    def purpose(self) -> Purpose:
        """Why the episode was played, such as training or validation."""
        return self.group.purpose

    @property
    def step(self) -> int:
        """In training, the learner's step when the group began. In a validation, the measured step."""
        return self.group.step

    @property
    def row(self) -> int:
        """Index of the episode's row in the dataset, from 0."""
        return self.group.row

    def __repr__(self) -> str:
        return f"<Trajectory {self.episode.episode_id}>"

    def __str__(self) -> str:
        return episodes.text(self)


class Run(Generic[Status]):
    """One job, on a cluster or on this machine. Every method blocks.

    Every method raises ClusterError or RunNotFoundError if the job no longer exists, or if its cluster does
    not answer.
    """

    def __init__(self, job: Job, form: type[Status]) -> None:
        """
        Args:
            job: the job, on a cluster or on this machine.
            form: the class of the job's status.
        """
        self._job = job
        self._form = form

    def __repr__(self) -> str:
        return f"<Run of {self.kind} {self.name}>"

    @property
    def kind(self) -> str:
        """`RLTrainingJob` or `RLEvalJob`."""
        return self._job.kind

    @property
    def name(self) -> str:
        """Name of the job."""
        return self._job.name

    @property
    def status(self) -> Status:
        """The job's present status, without blocks that another version of Headway wrote."""
        return self._status(self._job.now())

    def poll(self) -> Status | None:
        """The job's status if it is Complete; None while it runs.

        Raises:
            RunFailedError: the job has failed.
            RunHeldError: the job is held until somebody changes something.
        """
        job = self._job.job_if_stopped()
        if job is None:
            return None
        outcome.require_complete(job)
        return self._status(job)

    def wait(self, timeout: float | None = None) -> Status:
        """Wait until the job is Complete, and return its status. Ctrl-C ends the wait, not the job.

        Args:
            timeout: maximum seconds to wait; None for no limit.

        Raises:
            RunFailedError: the job has failed.
            RunHeldError: the job is held until somebody changes something.
            TimeoutError: the job still runs after the timeout.
        """
        waiting = Waiting(self.name, self.poll, timeout)
        while (found := waiting.look()) is None:
            time.sleep(waiting.pause())
        return found

    def suspend(self) -> None:
        """End the job's processes, without waiting for their end. Acknowledged steps remain."""
        self._job.suspend()

    def resume(self) -> None:
        """Resume the job if it is suspended or paused, or if the process that ran it has ended.

        Raises:
            ManifestError: `TrainingClient.run` found this local job, and the client has no `modules`.
        """
        self._job.resume()

    def metrics(self) -> DataFrame:
        """Metrics of the learner and of the batch, for each trained step.

        The table has a row for each step, and a column for each metric of `headway_api.metrics`. A value is
        NaN if a step lacks the metric.

        Raises:
            RunNotFoundError: the job has written nothing yet, a record cannot be read, or it is an
                evaluation.
            ModuleNotFoundError: pandas is not installed.
        """
        with self._trained() as files:
            return frames.table(reading.curves(files).by_step)

    def validations(self) -> DataFrame:
        """Results of each finished validation, a row for each step.

        The columns are `reward`, `external_score`, `success` (a share), `episodes`, `failed`, and one for
        each metric (`val/...`).

        Raises:
            RunNotFoundError: the job has written nothing yet, a record cannot be read, or it is an
                evaluation.
            ModuleNotFoundError: pandas is not installed.
        """
        with self._trained() as files:
            return frames.table(frames.validated(files.validations()))

    def trajectories(
        self,
        purpose: Purpose | str | None = None,
        *,
        step: int | None = None,
        row: int | None = None,
        outcome: Outcome | str | None = None,
        disagree: bool = False,
        failed: bool = False,
        task: str | None = None,
    ) -> Iterator[Trajectory]:
        """The job's episodes, in the order of their groups. Groups are read one at a time.

        Args:
            purpose: only episodes with this purpose; default: `train`, or `evaluation` for an evaluation.
            step: only episodes of one step.
            row: only episodes of one row of the dataset, from 0.
            outcome: only episodes with this outcome, such as `AgentError`.
            disagree: only episodes whose reward and external score differ, the largest difference first. All
                groups are read before the first episode is returned.
            failed: only episodes that ended with `AgentError` or `InfraError`.
            task: only episodes of one task: a value of the data's `taskColumn`, or a suite.

        Raises:
            RunNotFoundError: the job has written nothing yet, a group cannot be read, or there is no such
                task.
            ValueError: there is no such purpose or outcome.
        """
        ended = None if outcome is None else Outcome(outcome)
        stored = self._job.stored()
        why = stored.purpose if purpose is None else Purpose(purpose)
        chosen = None if task is None else task_rows.task(stored, why, task)
        wanted = Filter(step, ended, row, disagree, failed, chosen)
        groups = stored.groups(why, lost=wanted.lost)
        batches: Iterable[Iterable[GroupRecord]] = [groups] if disagree else ([group] for group in groups)
        return (Trajectory(each.group, each.episode) for batch in batches for each in wanted.of(batch))

    def report(self, path: str | Path = PAGE, *, tokenizer: str | Path | None = None) -> Path:
        """Write a report of the job as one HTML page (docs/report.md), and return the page's path.

        Args:
            path: the file to write.
            tokenizer: folder with tokenizer.json; default: spec.model.base, if that is a folder.

        Raises:
            RunNotFoundError: the job has written nothing yet, a record cannot be read, or an evaluation has
                not ended.
            OSError: the file cannot be written.
        """
        stored, out = self._job.stored(), Path(path)
        decode = decoder(None if tokenizer is None else Path(tokenizer), stored.base)
        out.write_text(run_page.page(stored, decode), encoding="utf-8")
        return out

    def cost(self) -> Bill:
        """The job's usage, in tokens and seconds, and its cost, in US dollars.

        Raises:
            RunNotFoundError: the job has used nothing yet, or its ledger cannot be read.
        """
        return self._job.bill()

    def _status(self, job: Json) -> Status:
        found = parse_status(KINDS[self.kind], job)
        assert isinstance(found, self._form)
        return found

    @contextmanager
    def _trained(self) -> Iterator[RunFiles]:
        """The files of a training job. An error while they are read becomes RunNotFoundError."""
        stored = self._job.stored()
        if stored.evaluates:
            raise RunNotFoundError(
                f"{self.name} is an evaluation and has no steps: call report() or trajectories()"
            )
        with readable(stored.layout.root):
            yield stored.files
