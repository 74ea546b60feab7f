"""Runs one rank of a replay: the learner, which trains the recorded steps one after another."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from headway_api.exits import JobError, leave
from headway_api.records import Batch, StepReport
from headway_api.replay import CACHE, PLAN, RESULT, ReplayRequest, ReplayResult, TensorDifference
from headway_api.run_files import RunFiles
from headway_api.store_unavailable import store_explained
from headway_trainer.batch import TrainingBatch
from headway_trainer.learner import Learner, fetched
from headway_trainer.logs import log
from headway_trainer.ranks import Ranks
from headway_trainer.replay.comparison import (
    HEADER,
    DigestComparison,
    digests,
    recorded_tensors,
    tensor_difference,
)
from headway_trainer.replay.context import ReplayContext
from headway_trainer.replay.plan import ReplayPlan, batch_of, without_algorithm
from headway_trainer.stopwatch import Stopwatch
from headway_trainer.termination import exit_on_sigterm, live

UNUSABLE: Final = "CheckpointUnusable"
RECORDED: Final = "recorded"
"""Name of the folder into which the weights that the run published are downloaded."""


@dataclass
class _Replay:
    """Trains the steps of a plan. Methods are collective."""

    context: ReplayContext
    plan: ReplayPlan
    learner: Learner
    ranks: Ranks
    first_difference: int | None = field(default=None)
    """The first step before the requested one whose weights differ from those that the run published."""

    def train(self) -> StepReport:
        """Train every step of the plan, and return the report of the last one."""
        now = self._resumed()
        if self.plan.first is not None:
            self._compare(now, self.plan.first)
            self._forget(now.step)
        for recorded in self.plan.reports:
            now = self._step(recorded, now)
            if self.ranks.first:
                log("step", step=now.step, **now.metrics)
            if now.step in self.plan.saved:
                self.learner.checkpointer.save(now)
                self.learner.checkpointer.settle()
            if now.step != self.context.request.step:
                self._compare(now, recorded)
                self._forget(now.step)
        return now

    def _resumed(self) -> StepReport:
        try:
            return self.learner.resume()
        except JobError as error:
            if error.termination.reason != UNUSABLE:
                raise
            log("checkpoint unusable", why=str(error))
            raise JobError(
                UNUSABLE,
                f"the checkpoint of step {self.plan.start} is damaged, or was deleted meanwhile: write "
                "--from-start to train all steps again",
            ) from error

    def _step(self, recorded: StepReport, before: StepReport) -> StepReport:
        changed = self.context.request.changed if recorded is self.plan.reports[-1] else None
        if changed is not None:
            recorded = recorded.model_copy(update={"in_force": without_algorithm(recorded.in_force)})
            self.learner.follow(self.context.here(changed), recorded.in_force)
        batch = self.ranks.share(self._batch(recorded) if self.ranks.first else None)
        assert batch is not None
        incarnation = before.version.incarnation
        if isinstance(batch, TrainingBatch):
            return self.learner.train(batch, incarnation, Stopwatch())
        return self._remedied(self.learner.remedy(batch, incarnation, Stopwatch()), recorded)

    def _batch(self, recorded: StepReport) -> TrainingBatch | Batch:
        layout = self.context.layout
        groups = RunFiles(self.context.store, layout).groups([*map(layout.train_group, recorded.groups)])
        batch = batch_of(recorded, [*groups], self.plan.idle)
        return batch if batch.directive is not None else self.learner.prepare(batch)

    def _remedied(self, now: StepReport, recorded: StepReport) -> StepReport:
        if now.refused is not None:
            raise JobError(
                "RemedyNotRepeated",
                f"step {now.step} was the remedy {recorded.directive and recorded.directive.remedy}, which "
                f"cannot be done here ({now.refused.reason}: {now.refused.message})",
            )
        return now

    def digests(self, now: StepReport, recorded: StepReport) -> DigestComparison:
        """Digests of the learner's current weights and of the weights that the run recorded."""
        direct = recorded.weights.direct
        if direct is None or recorded.weights.files:
            return digests(now.weights.files, recorded.weights.files)
        return DigestComparison(HEADER, self.ranks.share(self.learner.header()) or "", direct.header)

    def _compare(self, now: StepReport, recorded: StepReport) -> None:
        """Record the first step whose weights differ. Later steps then differ as a consequence."""
        if self.digests(now, recorded).same is False and self.first_difference is None:
            self.first_difference = now.step
            log("other weights than the run's", step=now.step)

    def _forget(self, step: int) -> None:
        """Delete the weights of an intermediate step, which are no longer needed."""
        if self.ranks.first:
            store = self.context.store
            store.delete(store.list(self.context.layout.weights(step)))

    def result(self, now: StepReport) -> ReplayResult:
        """The result of the replay."""
        request, recorded = self.context.request, self.plan.reports[-1]
        found = self.digests(now, recorded)
        difference, same = None, found.same
        if (
            self.ranks.first
            and same is not True
            and (difference := self._difference(now, recorded)) is not None
        ):
            same = difference.differing == 0  # files' headers may differ even if all tensors are equal
        return ReplayResult(
            step=request.step,
            start=self.plan.start,
            trained=[report.step for report in self.plan.reports],
            processes=self.ranks.world,
            changed=request.changed is not None,
            digest=found.now,
            recorded_digest=found.recorded,
            file=found.file,
            same=same,
            first_difference=self.first_difference,
            difference=difference,
            recorded=recorded.metrics,
            replayed=now.metrics,
            weights=now.weights.uri.removeprefix("file://"),
        )

    def _difference(self, now: StepReport, recorded: StepReport) -> TensorDifference | None:
        context, files = self.context, recorded.weights.files
        there = context.published(now.step)
        kept = recorded_tensors(context.run_store, there, files, context.folder / RECORDED)
        if kept is None:
            return None
        return tensor_difference(kept, Path(now.weights.uri.removeprefix("file://")) / kept.name)


def run(folder: Path) -> None:
    """Run one rank, whose number is in its environment. Rank 0 writes the result into `folder`.

    Raises:
        JobError: a person must correct something first.
    """
    context = ReplayContext(folder, ReplayRequest.read(folder))
    plan = ReplayPlan.model_validate_json((folder / PLAN).read_bytes())
    config, ranks = context.config, Ranks.join()
    models = Path(context.request.models)
    base = fetched(config.spec.model, context.store, models) if ranks.local_rank == 0 else None
    base = ranks.share(base)  # all ranks are on this machine
    assert base is not None
    learner = Learner(config, context.key, context.store, base, folder / CACHE, ranks, None)
    replay = _Replay(context, plan, learner, ranks)
    found = replay.result(replay.train())
    if ranks.first:
        (folder / RESULT).write_text(found.model_dump_json())
    ranks.barrier()
    ranks.leave()


def _explained(folder: Path) -> None:
    try:
        with store_explained():
            run(folder)
    except JobError as error:
        leave(error)


def main() -> None:
    """Entry point of one of several ranks."""
    exit_on_sigterm()
    live(partial(_explained, Path(sys.argv[1])))


if __name__ == "__main__":
    main()
