"""The learner's loop once it is loaded: batch after batch, until the job ends.

    start     resume, announce
    loop      ask for batch n+1 -> advantages, optimizer steps -> weights -> announce n+1 -> checkpoint
              or, if the batch is a directive -> do it -> weights -> announce n+1 -> checkpoint
    end       410 from the coordinator: a last checkpoint, exit 0; SIGTERM: the same, exit 143 (44 if
              another rank got it); no answer from the coordinator for `PATIENCE`: the same, exit 43, and
              the operator starts it again

Only rank 0 talks to the coordinator. After SIGTERM no rank does: the time left is for saving.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headway_api.records import Batch, Finished, StepReport
from headway_trainer.batch import TrainingBatch
from headway_trainer.coordinator_client import LONG_POLL, AnnounceFirst, CoordinatorClient, Unreachable
from headway_trainer.logs import log
from headway_trainer.probes import Probes
from headway_trainer.ranks import Ranks
from headway_trainer.termination import SHUTDOWN_GUARD

if TYPE_CHECKING:
    from headway_trainer.learner import Learner

SHORT_POLL: Final = 2.0
"""Seconds of a poll while something is not durable: the longest that one rank can delay the others at
SIGTERM."""


@dataclass
class Stopwatch:
    """Seconds spent, by name."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start


@dataclass(frozen=True)
class RankMessage:
    """What rank 0 received, for all ranks."""

    received: TrainingBatch | Batch | Finished | Unreachable | None
    """A `Batch` has a directive, and no groups that each rank would need."""
    durable: int
    """The newest step that a restart would resume from."""
    validated: tuple[int, ...] = ()
    """Validated steps, the best first; sent with a batch."""
    validating: tuple[int, ...] = ()
    """Steps whose validations are not complete; sent with a batch."""


def serve(
    learner: Learner, coordinator: CoordinatorClient | None, ranks: Ranks, probes: Probes | None
) -> Finished | None:
    """Train batch after batch until the coordinator has no more, or until any rank gets SIGTERM (None).

    Only rank 0 has a coordinator. What was trained is durable at the end.

    Raises:
        Unreachable: the coordinator did not answer; what was trained is durable then too.
    """
    report = learner.resume()
    if coordinator:
        _announce(learner, coordinator, report)
    if probes:
        probes.ready = True
    watch = Stopwatch()
    while True:
        with watch("wait_for_batch"):
            if coordinator and not SHUTDOWN_GUARD.asked:
                with suppress(Unreachable):  # `_next` tries again, and informs every rank
                    report = _said_again(learner, coordinator, report)
            message = ranks.share(
                _next(learner, coordinator, report) if coordinator else RankMessage(None, -1)
            )
        learner.checkpointer.check()
        if probes:
            probes.beat()
        # Every rank holds it, and none releases it before rank 0 knows that all is durable.
        SHUTDOWN_GUARD.set(message.durable < report.step)
        stopped = _stopped(ranks)
        if stopped or isinstance(message.received, Finished | Unreachable):
            _save(learner, report)
            if isinstance(message.received, Unreachable) and not stopped:
                raise message.received
            if not isinstance(message.received, Finished):
                return None
            learner.export(report)
            learner.prune(report.step, message.received.validated)
            if coordinator:
                _said_again(learner, coordinator, report)
            # A node that exits with 0 is not started again. If the first one failed before this point, it
            # would wait for the others forever.
            ranks.barrier()
            return message.received
        if message.received is None:
            continue
        incarnation = report.version.incarnation
        if isinstance(message.received, Batch):
            report = learner.remedy(message.received, incarnation, watch)
        else:
            report = learner.train(message.received, incarnation, watch)
        SHUTDOWN_GUARD.set(True)
        if _stopped(ranks):
            _save(learner, report)  # a learner that resumes announces it
            return None
        watch = Stopwatch()
        if coordinator:
            with suppress(Unreachable):  # as above
                _announce(learner, coordinator, report)
        if report.ended_at is not None:
            watch.seconds["report"] = max(0.0, time.time() - report.ended_at)
        with watch("save_checkpoint"):
            learner.checkpointer.after(report)
        with watch("prune"):
            learner.prune(report.step, message.validated, message.validating)
        if ranks.first:
            log("step", step=report.step, version=str(report.version), **report.metrics)


def _stopped(ranks: Ranks) -> bool:
    """Whether any rank got SIGTERM; collective."""
    return bool(ranks.maximum([SHUTDOWN_GUARD.asked])[0])


def _save(learner: Learner, report: StepReport) -> None:
    """Make `report`'s step durable in any case: when the job is over, the operator ends the learner."""
    SHUTDOWN_GUARD.set(True)
    learner.checkpointer.save(report)
    learner.checkpointer.settle()


def _next(learner: Learner, coordinator: CoordinatorClient, report: StepReport) -> RankMessage:
    durable = learner.checkpointer.durable
    if SHUTDOWN_GUARD.asked:
        return RankMessage(None, durable)
    try:
        answer = _asked(learner, coordinator, report)
    except Unreachable as away:
        return RankMessage(away, durable)
    if isinstance(answer, Batch):
        received = learner.prepare(answer) if answer.directive is None else answer
        return RankMessage(received, durable, tuple(answer.validated), tuple(answer.validating))
    return RankMessage(answer, durable)


def _asked(learner: Learner, coordinator: CoordinatorClient, report: StepReport) -> Batch | Finished | None:
    try:
        return coordinator.poll(report.step + 1, SHORT_POLL if SHUTDOWN_GUARD.held else LONG_POLL)
    except AnnounceFirst as unknown:
        log("announced again", why=str(unknown))
        _announce(learner, coordinator, report)
        return None


def _said_again(learner: Learner, coordinator: CoordinatorClient, report: StepReport) -> StepReport:
    """`report` with the newest durable step, announced again if that step is newer."""
    durable = learner.checkpointer.durable
    if durable <= report.durable:
        return report
    report = report.model_copy(update={"durable": durable})
    _announce(learner, coordinator, report)
    return report


def _announce(learner: Learner, coordinator: CoordinatorClient, report: StepReport) -> None:
    coordinator.announce(report, give_up=lambda: SHUTDOWN_GUARD.asked)
    learner.announced()
