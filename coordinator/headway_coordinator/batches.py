"""Hands out the batches of a training job: the groups of the next step, or a remedy instead of groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headway_api.exits import JobError
from headway_api.records import Batch, BatchWaits, Finished
from headway_api.rows import Row
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator.bounds import StepConflictError, check_staleness
from headway_coordinator.dataset import Order, position_of
from headway_coordinator.mixing import Mixture
from headway_coordinator.progress import ProgressCondition
from headway_coordinator.remedies.driver import Remedies
from headway_coordinator.scheduler.slots import BatchScheduler
from headway_coordinator.state import State
from headway_coordinator.training_groups import TrainingGroups
from headway_coordinator.validations import Validations


@dataclass
class Batches:
    """Only the event loop uses it."""

    spec: RLTrainingJobSpec
    rows: Sequence[Row]
    order: Order | Mixture
    state: State
    scheduler: BatchScheduler
    remedies: Remedies
    groups: TrainingGroups
    validations: Validations
    paused: Callable[[], bool]
    progress: ProgressCondition

    @property
    def steps(self) -> int:
        """The expected number of steps. A batch is always complete, so the last groups may be left over."""
        return self.scheduler.total

    @property
    def done(self) -> bool:
        """Whether no step follows: no batch can be cut, and no remedy is due at the next step.

        The learner may still be in a step while the last groups are abandoned. It may also have to repeat
        that step after it has used up the data.
        """
        left = self.remedies.due(self.state.step + 1) is not None
        return self.scheduler.done and not (left and self.state.step < self.spec.schedule.max_steps)

    @property
    def epochs_done(self) -> int:
        """Completed epochs of the training rows. Rows with abandoned groups count."""
        return len(self.scheduler.settled) // len(self.rows)

    @property
    def ready(self) -> bool:
        """Whether the learner could take a batch or a remedy now."""
        if self.state.step < 0 or self.withholds():
            return False
        return self.remedies.due(self.state.step + 1) is not None or self.scheduler.batch() is not None

    def learner_may_step(self) -> bool:
        """Whether the learner may take a step now, which would free the budget that its groups reserve."""
        return self.scheduler.cut is not None or self.ready

    async def take(self, step: int) -> Batch | Finished | None:
        """The batch of `step`, once it can be cut; None until then.

        Raises:
            StepConflictError: the learner is not at the expected step.
            JobError: `StaleBatch`, if a batch breaks the staleness bound.
        """
        if self.state.finished is not None:
            return Finished(reason=self.state.finished, validated=self.state.validated)
        if step != self.state.step + 1 or self.state.step < 0:
            raise StepConflictError(
                f"step {step} was asked for, but step {self.state.step} is the last one reported"
            )
        withheld, change = self.withholds() or self.remedies.busy, self.remedies.due(step)
        if change is not None and not withheld and not self.done:
            return self.remedies.batch(
                change, epoch=self.epochs_done, validating=list(self.validations.unfinished)
            )
        positions = None if withheld or change is not None else self.scheduler.take()
        self.groups.cancel_untrainable()
        if positions is None or self.scheduler.step >= self.steps:
            return None
        batch = Batch(
            step=step,
            epoch=self.order.slot(positions[0]).epoch,
            groups=[self.groups.waiting[position] for position in positions],
            in_force=self.state.in_force,
            validated=self.state.validated,
            validating=list(self.validations.unfinished),
            idle=self.state.idle,
        )
        bound = self.remedies.now.algorithm.max_steps_off_policy
        check_staleness(batch, bound, self.state.went_back)
        return batch

    async def wait(self, step: int, timeout: float) -> Batch | Finished | None:
        """The batch of `step`, as `take` returns it, but after waiting up to `timeout` seconds for it.

        The method first decides whether the step is a remedy. A JobError also ends `Training.run`.
        """
        self.groups.waits.runs("start", False)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    await self._consult(step)
                    async with self.progress.changed:
                        if (found := await self.take(step)) is not None:
                            return found
                        await self.progress.changed.wait()
        except TimeoutError:
            return None
        except JobError as fault:
            await self.progress.end(fault)
            raise

    def waits(self, batch: Batch) -> BatchWaits:
        """The waits of a batch that is sent now."""
        return self.groups.waits.of([position_of(group.group_id) for group in batch.groups])

    async def _consult(self, step: int) -> None:
        """Decide whether `step` is a remedy, unless its content is settled already."""
        free = step == self.state.step + 1 > 0 and self.state.finished is None and not self.scheduler.done
        if not free or self.withholds() or self.scheduler.cut is not None or step in self.scheduler.undone:
            return
        before = self.remedies.course
        await self.remedies.consult()
        if self.remedies.course != before:
            await self.progress.notify()

    def unvalidated(self) -> list[int]:
        """Steps whose validations are due and incomplete."""
        return self.validations.look(self.state.step, last=self.done)

    def withholds(self) -> bool:
        """Whether the learner gets no batch: the job is paused, or a validation must be complete first."""
        self.unvalidated()
        self.groups.waits.runs("validation", self.validations.blocks_batches)
        return self.paused() or self.validations.blocks_batches
