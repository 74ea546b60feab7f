"""The job's checkpoints: when one is made, how it becomes durable beside training, which ones are deleted."""

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
from headway_api.store_away import StoreAway
from headway_trainer.checkpoint import state
from headway_trainer.checkpoint.background import Background
from headway_trainer.checkpoint.journal import Journal, is_report, sealed_by
from headway_trainer.checkpoint.manifest import Checkpoint, Fault, NotWhole, unusable
from headway_trainer.checkpoint.retention import due, expired_checkpoints
from headway_trainer.engine import Engine
from headway_trainer.logs import log
from headway_trainer.ranks import Ranks


class CheckpointManager:
    """Saves and restores one learner; methods are collective unless they say otherwise."""

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
        """Whose state is kept; another one takes its place where all is put together anew."""
        self._store = store
        self._layout = layout
        self._journal = journal
        self._scratch = scratch
        self._fetched = scratch.with_name(f"{scratch.name}-fetched")
        """Apart from what is being uploaded."""
        self._ranks = ranks
        self._uploaders = [rank for rank, local in enumerate(ranks.gather(ranks.local_rank)) if local == 0]
        self._background = Background()
        self._upload: Callable[[], None] = lambda: None
        """What makes the newest snapshot of this node durable; may be done again."""
        self._given_up = 0
        """Uploads that the store's absence has ended since one went through."""
        self._withdrawn = threading.Event()
        """Of the newest snapshot: a node has given its upload up, and it will not be whole."""
        self.saved = -1
        """The newest step whose state was copied, be it durable or not."""
        self.durable = -1
        """The newest step that a restart would resume from. Rank 0 alone knows it."""

    def restore(self, checkpoint: Checkpoint) -> None:
        """Make the learner what it was at `checkpoint`'s step, from which it resumes.

        Raises:
            JobError: `CheckpointUnusable`: a file is missing or damaged, or they cannot be converted for as
                many processes as there are.
        """
        if self._ranks.local_rank == 0:
            shutil.rmtree(self._scratch, ignore_errors=True)  # what a process before this one copied
        if (fault := self.fetch(checkpoint)) is not None:
            raise JobError(fault.end.reason, fault.end.message, field=fault.end.field, permanent=False)
        self.load(checkpoint)
        self.saved = self.durable = checkpoint.report.step

    def fetch(self, checkpoint: Checkpoint) -> Fault | None:
        """Have the files of `checkpoint` on every node, for `load`; what is wrong with them, on any."""
        fault = self._fetch(checkpoint) if self._ranks.local_rank == 0 else None
        return next(filter(None, self._ranks.gather(fault)), None)

    def _fetch(self, checkpoint: Checkpoint) -> Fault | None:
        uri, world = self._uri(checkpoint), 0 if self.engine.replicated else self._ranks.world
        try:
            state.fetch(self._store, uri, checkpoint.state, self._fetched, world)
        except NotWhole as broken:
            return Fault(broken.why, unusable(broken.uri, broken.why).termination)
        except JobError as failed:
            return Fault(failed.termination.message, failed.termination)
        return None

    def load(self, checkpoint: Checkpoint) -> None:
        """Make the engine, which has not stepped, what it was at `checkpoint`'s step."""
        state.load(self.engine, checkpoint.state, self._fetched, self._ranks)

    def after(self, report: StepReport) -> None:
        """Make a checkpoint if one is due at `report`'s step, or if the step was a change: the steps before
        would be taken in vain otherwise, should the learner die."""
        changed = report.directive is not None and report.refused is None
        if changed or due(report.step, self._spec.every_steps):
            self.save(report)

    def save(self, report: StepReport) -> None:
        """Copy the learner's state, which is `report`'s step, and begin to make it durable; nothing to do
        where it was done.

        Raises:
            StoreAway: the store was away for this checkpoint's predecessor, and before that.
            JobError: what else became of the checkpoint before, where that could not be made durable.
        """
        if report.step == self.saved:
            return
        # Rank 0 is the last to wait: what another node has given up it would await in vain.
        if any(self._ranks.gather(not self._ranks.first and self._lost())):
            self._withdrawn.set()
        if self._ranks.first:
            self._lost()
        # Nobody still reads the files that are about to be replaced.
        start = self._ranks.share(self._journal.start)
        taken = state.snapshot(self.engine, start, self._scratch, self._ranks)
        self.saved = report.step
        if self._ranks.local_rank == 0:
            self._withdrawn = threading.Event()
            self._upload = partial(self._make_durable, taken, report, self._withdrawn)
            self._background.start(self._upload)

    def settle(self) -> None:
        """Return once nothing is under way on any rank: what was saved is durable.

        Raises:
            StoreAway: the store was away twice for as long as it is waited for.
            JobError: it could not be made so for another reason.
        """
        try:
            self._background.wait()
        except StoreAway as away:
            self._upload_again(away)
            self._background.wait()
        self._ranks.barrier()

    def check(self) -> None:
        """Have what failed in the background come up here, or be tried again. Not collective."""
        try:
            self._background.raise_failure()
        except StoreAway as away:
            self._upload_again(away)

    def prune(self, validated: Sequence[int], validating: Sequence[int] = ()) -> list[int]:
        """Delete checkpoints that `spec.checkpoints` no longer keeps, and files that belong to none: never
        sealed, or of a step that was taken anew since. The steps of those that stay, with the one that is
        being written. Rank 0 alone calls it.

        Args:
            validated: validated steps, the best first.
            validating: steps whose validations are not complete.

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
        # What makes a checkpoint whole goes first, by itself: a store deletes in any order what it is told at
        # once, and cut short this leaves none that is taken for whole.
        self._store.delete(filter(is_report, gone))
        self._store.delete(filterfalse(is_report, gone))
        return sorted(found.keys() - set(old) | {self.saved})

    def _uri(self, checkpoint: Checkpoint) -> str:
        return self._layout.checkpoint_of(checkpoint.report.step, checkpoint.state.start)

    def _lost(self) -> bool:
        """Whether the store's absence ended the upload of this node, once that is over. It is not made again:
        the newer state takes its place, which may be the last that can be saved.
        """
        try:
            self._background.wait()
        except StoreAway as away:
            self._give_up(away)
            return True
        return False

    def _upload_again(self, away: StoreAway) -> None:
        """The snapshot is whole, and the process with it: the upload alone failed."""
        self._give_up(away)
        self._background.start(self._upload)

    def _give_up(self, away: StoreAway) -> None:
        self._given_up += 1
        if self._given_up > 1:
            raise away
        log("upload of a checkpoint given up", step=self.saved, why=str(away))

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
