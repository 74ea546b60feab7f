"""Records which steps were taken and which are durable. These writes, in this order, make a checkpoint valid:

    0. learners/<start>                    this process is the learner, and no earlier process is
    1. the weights of step n
    2. steps/<n>.json                      the step is taken: its groups, in this incarnation
    3. POST /v1/steps                      servers may sample with the step's weights
    4. checkpoints/<n>/<start>/...         the files of the step's checkpoint, if any; in the background
    5. checkpoints/<n>/<start>/report.json the checkpoint is whole
    6. latest.json = {"step": n}           a restart resumes here

A crash between 2 and 6 leaves steps that were taken but are not durable. The next start resumes at the
durable step. It takes the later steps again, from the same groups, in a new incarnation. So their weights
and their bill cannot be mistaken for the earlier ones.

A process may hang at any point, and continue long after its successor has resumed. Before each of these
writes and each deletion, a process checks whether a newer process has started, and ends if so. A write that
was already in progress harms no checkpoint, because each process writes its checkpoints into its own folders.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from headway_api.artifacts import NUMBERED, Layout, by_number, pointed, written
from headway_api.bounds import OutOfBoundsError
from headway_api.exits import JobError
from headway_api.record import Record
from headway_api.records import PolicyVersion, StepReport
from headway_api.store import ObjectNotFoundError, Store
from headway_api.stored import parsed, read_each
from headway_trainer.checkpoint.manifest import (
    Checkpoint,
    CheckpointManifest,
    IncompleteCheckpointError,
    unusable,
)
from headway_trainer.checkpoint.signer import Signer


def latest_step(store: Store, layout: Layout) -> int | None:
    """The step that a job resumes from; None for a new job.

    Raises:
        JobError: `CheckpointUnusable`: a person has written a pointer that cannot be read.
    """
    try:
        pointer = store.get(layout.latest)
    except ObjectNotFoundError:
        return None
    try:
        return pointed(pointer)
    except OutOfBoundsError as error:
        raise unusable(layout.latest, f'it holds no {{"step": n}}: {pointer[:80]!r}') from error


class Journal:
    """The step reports of a job in its artifact store; only rank 0 writes them."""

    def __init__(self, store: Store, layout: Layout, signer: Signer) -> None:
        self._store = store
        self._layout = layout
        self.signer = signer
        """Signs the records of this job's checkpoints."""
        self.start = -1
        """The number of this process among the learner's starts. It is -1 before `begin`, and on every rank
        except 0."""
        self._taken: dict[int, PolicyVersion] = {}
        """The recorded version of each step."""
        self._sealed: dict[tuple[int, int], PolicyVersion] = {}
        """The version of checkpoints whose report.json was read or written, by step and start."""

    @property
    def step(self) -> int | None:
        """The step to resume from; None for a new job.

        Raises:
            JobError: `CheckpointUnusable`: a person has written a pointer that cannot be read.
        """
        return latest_step(self._store, self._layout)

    def begin(self) -> Checkpoint | None:
        """Become the learner, instead of any earlier process.

        Returns:
            The checkpoint to resume from, with its report changed to the resuming incarnation. None for a new
            job.
        Raises:
            JobError: `CheckpointUnusable`: the pointer does not name a complete checkpoint.
        """
        # Claim the start first, so that an earlier learner no longer moves the pointer after it is read here.
        self.start = self._next_start()
        if (step := self.step) is None:
            return None
        try:
            found = self._newest(step)
        except IncompleteCheckpointError as broken:
            raise unusable(broken.uri, broken.why) from broken
        history = self._reports()
        self._taken = {report.step: report.version for report in history}
        report = _in_incarnation(found.report, incarnation(found.report, history))
        return found.model_copy(update={"report": report})

    def find(self, step: int, last: int) -> Checkpoint:
        """The checkpoint of `step`, on the line of steps whose last one is `last`.

        Raises:
            IncompleteCheckpointError: there is no such checkpoint.
        """
        folder = self._layout.checkpoint(step)
        if step > last:
            raise IncompleteCheckpointError(folder, f"step {last} is the last one taken")
        found = self._newest(step)
        if not self._is_current(step, found.state.start):
            raise IncompleteCheckpointError(folder, "the step has been taken again since")
        return found

    def usable_checkpoints(self) -> set[int]:
        """Steps with a complete checkpoint that have not been taken again since, as the store shows now.

        It writes nothing. `find` later uses the step reports that this method reads.
        """
        self._taken = {report.step: report.version for report in self._reports()}
        folder = self._layout.checkpoints
        found = by_number(self._store.list(folder), folder)
        starts = {step: sealed_by(uris, self._layout.checkpoint(step)) for step, uris in found.items()}
        return self.standing({step: start for step, start in starts.items() if start is not None})

    def refuse_superseded(self) -> None:
        """End if a newer process is the learner.

        Call it before a write that a successor might mistake for its own, and before deleting.

        Only rank 0 checks. The other ranks make no such writes, and end when rank 0 ends.

        Raises:
            JobError: `Superseded`: a newer process is the learner.
        """
        if self.start < 0:
            return
        try:
            self._store.get(self._layout.learner(self.start + 1))
        except ObjectNotFoundError:
            return
        raise JobError(
            "Superseded",
            f"start {self.start + 1} of the learner has begun, and this is {self.start}; the newer one "
            "continues from the durable state",
            permanent=False,
            counted=False,
        )

    def take(self, report: StepReport) -> None:
        """Record that `report`'s step was taken; idempotent.

        Raises:
            JobError: `Superseded`.
        """
        self.refuse_superseded()
        self._store.put(self._layout.step_history(report.step), _body(report))
        self._taken[report.step] = report.version

    def seal(self, report: StepReport, state: CheckpointManifest) -> None:
        """Make `report`'s step the one to resume from; idempotent. The store must have all its files already.

        Raises:
            JobError: `Superseded`.
        """
        self._seal(Checkpoint(report=report.model_copy(update={"durable": report.step}), state=state))
        self._store.put(self._layout.latest, json.dumps({"step": report.step}).encode())

    def confirm(self, resumed: Checkpoint) -> None:
        """Write again the resumed step's records that a crash may have left unwritten; idempotent.

        The pointer does not change. A new checkpoint moves it forward, and only a person moves it back.

        Raises:
            JobError: `Superseded`.
        """
        self._seal(resumed)
        self.take(resumed.report)

    def standing(self, sealed: Mapping[int, int]) -> set[int]:
        """The steps in `sealed` that have a complete checkpoint and have not been taken again since.
        `sealed` maps a step to the start that wrote its report.json."""
        return {step for step, start in sealed.items() if self._is_current(step, start)}

    def _is_current(self, step: int, start: int) -> bool:
        if (step, start) not in self._sealed:
            try:
                self._remember(self._checkpoint(step, start))
            except IncompleteCheckpointError:
                return False
        taken = self._taken.get(step)
        return taken is not None and not self._sealed[step, start] < taken

    def _newest(self, step: int) -> Checkpoint:
        """The newest complete checkpoint of a step, from any start."""
        folder = self._layout.checkpoint(step)
        if (start := sealed_by(self._store.list(folder), folder)) is None:
            raise IncompleteCheckpointError(folder, "it has no report.json")
        return self._checkpoint(step, start)

    def _checkpoint(self, step: int, start: int) -> Checkpoint:
        uri = self._layout.checkpoint_report(step, start)
        try:
            found = Checkpoint.model_validate(self.signer.opened(uri, self._store.get(uri)))
        except (ObjectNotFoundError, ValueError, JobError) as error:
            raise IncompleteCheckpointError(uri, f"it cannot be read: {type(error).__name__}") from error
        if (found.report.step, found.state.start) != (step, start):
            raise IncompleteCheckpointError(
                uri, f"it was written for step {found.report.step}, start {found.state.start}"
            )
        return found

    def _seal(self, checkpoint: Checkpoint) -> None:
        self.refuse_superseded()
        uri = self._layout.checkpoint_report(checkpoint.report.step, checkpoint.state.start)
        self._store.put(uri, self.signer.signed(checkpoint.model_dump(mode="json")))
        self._remember(checkpoint)

    def _remember(self, checkpoint: Checkpoint) -> None:
        self._sealed[checkpoint.report.step, checkpoint.state.start] = checkpoint.report.version

    def _next_start(self) -> int:
        number = len(self._store.list(self._layout.learners))
        while not self._store.put_new(self._layout.learner(number), b""):
            number += 1
        return number

    def _reports(self) -> list[StepReport]:
        folder = self._layout.step_histories
        uris = written(self._store.list(folder), folder, NUMBERED)
        return [*read_each(self._store, uris, partial(parsed, StepReport))]


def sealed_by(uris: Iterable[str], folder: str) -> int | None:
    """The newest start that sealed a checkpoint in `folder` (`.../checkpoints/000012`); None if no start did.

    Args:
        uris: URIs of the objects in the folder.
    """
    return max(by_number(filter(is_report, uris), folder), default=None)


def is_report(uri: str) -> bool:
    """Whether an object of a checkpoint is its report.json, which makes the checkpoint complete."""
    return uri.endswith("/report.json")


def incarnation(resumed: StepReport, history: Sequence[StepReport]) -> int:
    """The incarnation that continues from `resumed`, given the recorded steps.

    It is `resumed`'s own incarnation, unless a later step was already reported in it, or any step in a newer
    incarnation. In those cases the next steps are taken again and may differ, so they need new names.
    """
    current = resumed.version.incarnation
    newest = max((report.version.incarnation for report in history), default=current)
    beyond = any(r.step > resumed.step and r.version.incarnation >= current for r in history)
    return newest + 1 if newest > current or beyond else current


def _in_incarnation(report: StepReport, number: int) -> StepReport:
    version = PolicyVersion(incarnation=number, step=report.step)
    weights = report.weights.model_copy(update={"version": version})
    return report.model_copy(update={"version": version, "weights": weights})


def _body(record: Record) -> bytes:
    return record.model_dump_json().encode()
