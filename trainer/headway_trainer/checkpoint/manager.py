"""The job's checkpoints: decides when to make one, makes it durable during training, and deletes old ones."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import filterfalse
from pathlib import Path

from headway_api.artifacts import Layout, by_number
from headway_api.exits import JobError
from headway_api.records import StepReport
from headway_api.spec.learner import CheckpointsSpec
from headway_api.store import Store
from headway_api.store_unavailable import StoreUnavailableError
from headway_trainer.checkpoint import state
from headway_trainer.checkpoint.background import Background
from headway_trainer.checkpoint.journal import Journal, is_report, sealed_by
from headway_trainer.checkpoint.manifest import Checkpoint, Fault, IncompleteCheckpointError, unusable
from headway_trainer.checkpoint.retention import due, expired_checkpoints
from headway_trainer.engine import Engine
from headway_trainer.logs import log
from headway_trainer.ranks import Ranks


class CheckpointManager:
    """Saves and restores one learner. Methods are collective unless their docstrings say otherwise."""

    def __init__(
        self,
        spec: CheckpointsSpec,
        engine: Engine,
        store: Store,
        layout: Layout,
        journal: Journal,
        scratch: Path,
        ranks: Ranks,
    ) -> None:
        self._spec = spec
        self.engine = engine
        """The engine whose state is saved; replaced when the learner is rebuilt."""
        self._store = store
        self._layout = layout
        self._journal = journal
        self._scratch = scratch
        self._fetched = scratch.with_name(f"{scratch.name}-fetched")
        """The folder for downloads, separate from the snapshot that is being uploaded."""
        self._ranks = ranks
        self._uploaders = [rank for rank, local in enumerate(ranks.gather(ranks.local_rank)) if local == 0]
        self._background = Background()
        self._upload: Callable[[], None] = lambda: None
        """Makes the newest snapshot of this node durable. It may be called again."""
        self._given_up = 0
        """Uploads that failed because the store was unavailable, since the last success."""
        self._withdrawn = threading.Event()
        """Set if a node has given up its upload of the newest snapshot, whose checkpoint then stays
        incomplete."""
        self.saved = -1
        """The newest step whose state was copied, durable or not."""
        self.durable = -1
        """The newest step that a restart would resume from. Only rank 0 knows it."""

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the learner to `checkpoint`'s step, from which it resumes.

        Raises:
            JobError: `CheckpointUnusable`: a file is missing or damaged, or cannot be converted for the
                present number of processes.
        """
        if self._ranks.local_rank == 0:
            shutil.rmtree(self._scratch, ignore_errors=True)  # copies of an earlier process
        if (fault := self.fetch(checkpoint)) is not None:
            raise JobError(fault.end.reason, fault.end.message, field=fault.end.field, permanent=False)
        self.load(checkpoint)
        self.saved = self.durable = checkpoint.report.step

    def fetch(self, checkpoint: Checkpoint) -> Fault | None:
        """Fetch the files of `checkpoint` on every node, for `load`. Return the first node's fault, if
        any."""
        fault = self._fetch(checkpoint) if self._ranks.local_rank == 0 else None
        return next(filter(None, self._ranks.gather(fault)), None)

    def _fetch(self, checkpoint: Checkpoint) -> Fault | None:
        uri, world = self._uri(checkpoint), 0 if self.engine.replicated else self._ranks.world
        try:
            state.fetch(self._store, uri, checkpoint.state, self._fetched, world)
        except IncompleteCheckpointError as broken:
            return Fault(broken.why, unusable(broken.uri, broken.why).termination)
        except JobError as failed:
            return Fault(failed.termination.message, failed.termination)
        return None

    def load(self, checkpoint: Checkpoint) -> None:
        """Load `checkpoint`'s state into the engine, which must not have taken a step."""
        state.load(self.engine, checkpoint.state, self._fetched, self._ranks)

    def after(self, report: StepReport) -> None:
        """Make a checkpoint if one is due at `report`'s step, or if a directive changed the learner there. A
        crash soon after the change then does not waste the steps before it."""
        changed = report.directive is not None and report.refused is None
        if changed or due(report.step, self._spec.every_steps):
            self.save(report)

    def save(self, report: StepReport) -> None:
        """Copy the learner's state after `report`'s step, and begin to make the copy durable.

        It does nothing if this step has been copied already.

        Raises:
            StoreUnavailableError: the store was unavailable for two uploads in a row.
            JobError: the last checkpoint could not be made durable for another reason.
        """
        if report.step == self.saved:
            return
        # Rank 0 waits last: otherwise it could wait for an upload that another node has given up.
        if any(self._ranks.gather(not self._ranks.first and self._lost())):
            self._withdrawn.set()
        if self._ranks.first:
            self._lost()
        # No upload reads the old snapshot any more, so the new one may replace it.
        start = self._ranks.share(self._journal.start)
        taken = state.snapshot(self.engine, start, self._scratch, self._ranks)
        self.saved = report.step
        if self._ranks.local_rank == 0:
            self._withdrawn = threading.Event()
            self._upload = partial(self._make_durable, taken, report, self._withdrawn)
            self._background.start(self._upload)

    def settle(self) -> None:
        """Return once no rank uploads and the newest snapshot is durable.

        Raises:
            StoreUnavailableError: the store was unavailable for two uploads in a row.
            JobError: the snapshot could not be made durable for another reason.
        """
        try:
            self._background.wait()
        except StoreUnavailableError as error:
            self._upload_again(error)
            self._background.wait()
        self._ranks.barrier()

    def check(self) -> None:
        """Raise the failure of the background upload, or retry if only the store was unavailable. Not
        collective."""
        try:
            self._background.raise_failure()
        except StoreUnavailableError as error:
            self._upload_again(error)

    def prune(self, validated: Sequence[int], validating: Sequence[int] = ()) -> list[int]:
        """Delete checkpoints that `spec.checkpoints` no longer keeps, and files of no valid checkpoint.

        Such files were never sealed, or their step was taken again since. Only rank 0 calls this method.

        Args:
            validated: validated steps, the best first.
            validating: steps whose validations are not complete.
        Returns:
            The steps of the checkpoints that remain, and of the checkpoint being written.
        Raises:
            JobError: `Superseded`.
        """
        self._journal.refuse_superseded()
        folder, spec, durable = self._layout.checkpoints, self._spec, self.durable
        found = by_number(self._store.list(folder), folder)
        starts = {step: sealed_by(uris, self._layout.checkpoint(step)) for step, uris in found.items()}
        sealed = {step: start for step, start in starts.items() if start is not None and step <= durable}
        whole = self._journal.standing(sealed)
        old = expired_checkpoints(
            found.keys(), whole, durable, spec.keep_last, spec.keep_best, validated, validating
        )
        gone = [uri for step in old for uri in found[step]]
        for step in whole.difference(old):
            own = f"{self._layout.checkpoint_of(step, sealed[step])}/"
            gone += [uri for uri in found[step] if not uri.startswith(own)]
        # A store deletes the objects of one call in any order. So the first call deletes only report.json
        # files. If the deletion is interrupted, no broken checkpoint looks complete.
        self._store.delete(filter(is_report, gone))
        self._store.delete(filterfalse(is_report, gone))
        return sorted(found.keys() - set(old) | {self.saved})

    def _uri(self, checkpoint: Checkpoint) -> str:
        return self._layout.checkpoint_of(checkpoint.report.step, checkpoint.state.start)

    def _lost(self) -> bool:
        """Wait for this node's upload. Return whether it failed because the store was unavailable.

        The failed upload is not repeated. A newer snapshot is about to replace it, and may be the last one
        that can be saved.
        """
        try:
            self._background.wait()
        except StoreUnavailableError as error:
            self._give_up(error)
            return True
        return False

    def _upload_again(self, error: StoreUnavailableError) -> None:
        """Upload the snapshot again. Only the upload failed: the snapshot and the process are intact."""
        self._give_up(error)
        self._background.start(self._upload)

    def _give_up(self, error: StoreUnavailableError) -> None:
        self._given_up += 1
        if self._given_up > 1:
            raise error
        log("upload of a checkpoint failed", step=self.saved, why=str(error))

    def _make_durable(self, taken: state.Snapshot, report: StepReport, withdrawn: threading.Event) -> None:
        self._journal.refuse_superseded()
        uri = self._layout.checkpoint_of(report.step, taken.start)
        signer = self._journal.signer
        state.upload(taken, self._store, uri, self._ranks.rank, signer)
        if self._ranks.first:
            whole = state.complete(taken, self._store, uri, self._uploaders, withdrawn, signer)
            if whole is None:
                return
            self._journal.seal(report, whole)
            self.durable = report.step
        self._given_up = 0
