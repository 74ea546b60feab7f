"""The learner's main loop after loading: trains batch after batch until the job ends.

    start      resume, announce
    loop       ask for batch n+1 -> advantages, optimizer steps -> weights -> announce n+1 -> checkpoint
    directive  if the batch is a directive: carry it out -> weights -> announce n+1 -> checkpoint
    end        410 from the coordinator: a last checkpoint, exit 0
    SIGTERM    a last checkpoint, exit 143 (44 if another rank got the signal)
    silence    no answer from the coordinator for `PATIENCE`: a last checkpoint, exit 43. The operator
    restarts it

Only rank 0 talks to the coordinator. After SIGTERM no rank does: the time left is for saving.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from headway_api.records import Batch, Finished, StepReport
from headway_trainer.batch import TrainingBatch
from headway_trainer.checkpoint.manager import CheckpointManager
from headway_trainer.coordinator_client import (
    LONG_POLL,
    CoordinatorClient,
    CoordinatorUnreachableError,
    StepNotAnnouncedError,
)
from headway_trainer.logs import log
from headway_trainer.probes import Probes
from headway_trainer.ranks import Ranks
from headway_trainer.stopwatch import Stopwatch
from headway_trainer.termination import SHUTDOWN_GUARD

SHORT_POLL: Final = 2.0
"""Seconds of a poll while a step is not durable. A poll may delay the other ranks this long after SIGTERM."""


class LearnerProtocol(Protocol):
    """The methods of a learner that the loop calls. All are collective, except `prepare` and `announced`."""

    checkpointer: CheckpointManager

    def resume(self) -> StepReport:
        """Resume the newest durable step, or make step 0 durable."""

    def prepare(self, batch: Batch) -> TrainingBatch:
        """Training rows and advantages of a batch."""

    def train(self, batch: TrainingBatch, incarnation: int, before: Stopwatch) -> StepReport:
        """Train one batch, publish its weights and record its step."""

    def remedy(self, batch: Batch, incarnation: int, before: Stopwatch) -> StepReport:
        """Carry out the directive of `batch`, publish the resulting weights and record the step."""

    def announced(self) -> None:
        """Note that the coordinator has been informed of the newest weights."""

    def export(self, newest: StepReport) -> None:
        """Write the newest weights completely into the store."""

    def prune(self, latest: int, validated: Sequence[int], validating: Sequence[int] = ()) -> None:
        """Delete files of the steps up to `latest` that are no longer kept."""


@dataclass(frozen=True)
class RankMessage:
    """The coordinator's answer to rank 0, as rank 0 shares it with all ranks."""

    received: TrainingBatch | Batch | Finished | CoordinatorUnreachableError | None
    """A `Batch` is sent only for its directive, and has no groups."""
    durable: int
    """The newest step that a restart would resume from."""
    validated: tuple[int, ...] = ()
    """Validated steps, the best first; sent with a batch."""
    validating: tuple[int, ...] = ()
    """Steps whose validations are not complete; sent with a batch."""


def serve(
    learner: LearnerProtocol,
    coordinator: CoordinatorClient | None,
    ranks: Ranks,
    probes: Probes | None,
    started: float,
) -> Finished | None:
    """Train batch after batch until the coordinator has no more, or until any rank gets SIGTERM (None).

    Only rank 0 has a `coordinator`. All trained steps are durable at the end.

    Args:
        started: when this process started, in Unix time.

    Raises:
        CoordinatorUnreachableError: the coordinator did not answer. All trained steps are durable then too.
    """
    report = learner.resume()
    if coordinator:
        _announce(learner, coordinator, report)
    if probes:
        probes.ready = True
    watch = Stopwatch.of_first_step(report, started)
    while True:
        with watch("wait_for_batch"):
            if coordinator and not SHUTDOWN_GUARD.asked:
                with suppress(CoordinatorUnreachableError):  # `_next` tries again, and informs every rank
                    report = _announced_again(learner, coordinator, report)
            message = ranks.share(
                _next(learner, coordinator, report) if coordinator else RankMessage(None, -1)
            )
        learner.checkpointer.check()
        if probes:
            probes.record_progress()
        # Every rank keeps the guard until rank 0 knows that the step is durable.
        SHUTDOWN_GUARD.set(message.durable < report.step)
        stopped = _stopped(ranks)
        if stopped or isinstance(message.received, Finished | CoordinatorUnreachableError):
            _save(learner, report)
            if isinstance(message.received, CoordinatorUnreachableError) and not stopped:
                raise message.received
            if not isinstance(message.received, Finished):
                return None
            _complete(learner, coordinator, ranks, report, message.received)
            return message.received
        if message.received is None:
            continue
        report = _step(learner, message.received, report.version.incarnation, watch)
        SHUTDOWN_GUARD.set(True)
        if _stopped(ranks):
            _save(learner, report)  # not announced here: the next learner announces the step when it resumes
            return None
        ended = time.time() if report.ended_at is None else report.ended_at
        if coordinator:
            with suppress(CoordinatorUnreachableError):  # `_next` tries again, and informs every rank
                _announce(learner, coordinator, report)
        watch = Stopwatch({"report": max(0.0, time.time() - ended)}, ended)
        with watch("save_checkpoint"):
            learner.checkpointer.after(report)
        with watch("prune"):
            learner.prune(report.step, message.validated, message.validating)
        if ranks.first:
            log("step", step=report.step, version=str(report.version), **report.metrics)


def _step(
    learner: LearnerProtocol, received: TrainingBatch | Batch, incarnation: int, before: Stopwatch
) -> StepReport:
    """Take one step: train a batch, or carry out its directive."""
    if isinstance(received, Batch):
        return learner.remedy(received, incarnation, before)
    return learner.train(received, incarnation, before)


def _complete(
    learner: LearnerProtocol,
    coordinator: CoordinatorClient | None,
    ranks: Ranks,
    report: StepReport,
    finished: Finished,
) -> None:
    """Write the newest weights completely into the store, once the coordinator has no more batches."""
    learner.export(report)
    learner.prune(report.step, finished.validated)
    if coordinator:
        _announced_again(learner, coordinator, report)
    # Kubernetes does not restart a pod that exits with 0. If the first node failed before this point and
    # restarted, it would wait forever for nodes that have already exited.
    ranks.barrier()


def _stopped(ranks: Ranks) -> bool:
    """Whether any rank got SIGTERM; collective."""
    return bool(ranks.maximum([SHUTDOWN_GUARD.asked])[0])


def _save(learner: LearnerProtocol, report: StepReport) -> None:
    """Make `report`'s step durable, under the shutdown guard: the operator may send SIGTERM when the job
    ends."""
    SHUTDOWN_GUARD.set(True)
    learner.checkpointer.save(report)
    learner.checkpointer.settle()


def _next(learner: LearnerProtocol, coordinator: CoordinatorClient, report: StepReport) -> RankMessage:
    durable = learner.checkpointer.durable
    if SHUTDOWN_GUARD.asked:
        return RankMessage(None, durable)
    try:
        answer = _asked(learner, coordinator, report)
    except CoordinatorUnreachableError as error:
        return RankMessage(error, durable)
    if isinstance(answer, Batch):
        received = learner.prepare(answer) if answer.directive is None else answer
        return RankMessage(received, durable, tuple(answer.validated), tuple(answer.validating))
    return RankMessage(answer, durable)


def _asked(
    learner: LearnerProtocol, coordinator: CoordinatorClient, report: StepReport
) -> Batch | Finished | None:
    try:
        return coordinator.poll(report.step + 1, SHORT_POLL if SHUTDOWN_GUARD.held else LONG_POLL)
    except StepNotAnnouncedError as unknown:
        log("announced again", why=str(unknown))
        _announce(learner, coordinator, report)
        return None


def _announced_again(
    learner: LearnerProtocol, coordinator: CoordinatorClient, report: StepReport
) -> StepReport:
    """`report` with the newest durable step, announced again if that step is newer."""
    durable = learner.checkpointer.durable
    if durable <= report.durable:
        return report
    report = report.model_copy(update={"durable": durable})
    _announce(learner, coordinator, report)
    return report


def _announce(learner: LearnerProtocol, coordinator: CoordinatorClient, report: StepReport) -> None:
    coordinator.announce(report, give_up=lambda: SHUTDOWN_GUARD.asked)
    learner.announced()
