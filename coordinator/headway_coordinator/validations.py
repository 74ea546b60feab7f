"""The validations of one job: which are due, which one runs, and their results.

Full weights on shared servers: a validation runs between a step's report and the next batch, and training
waits for it.
LoRA on shared servers: the servers hold the validated adapter in a separate slot, and training goes on.
A server for held-out rows (spec.evaluation.servers): training goes on, with LoRA and with full weights.
While training goes on, one validation runs and one may wait. When a third is due, the learner gets no batch
until the first is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headway_analysis.measures.metrics import Metrics
from headway_api import logs
from headway_api.exits import JobError
from headway_api.records import GroupRecord, StepReport, WeightsManifest
from headway_api.rows import Row
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator import group as groups
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.bounds import lost
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.engines.router import Router
from headway_coordinator.evaluation import driver
from headway_coordinator.evaluation.projections import in_a_line
from headway_coordinator.evaluation.summary import Summary
from headway_coordinator.gateway.asks import Sampling
from headway_coordinator.spool import Replay
from headway_coordinator.state import State

MAX_UNFINISHED: Final = 2
"""The most validations that may be unfinished while the learner gets batches: one runs, and one waits."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConcurrentValidation:
    """Samples held-out rows while training goes on.

    It uses a separate weight slot on the training servers, or a separate server.
    """

    fleet: Fleet
    episode: groups.Run
    limiter: AdaptiveSemaphore | None = None
    """Bounds the episodes of validations. None if they share the limit and servers of training episodes."""

    @property
    def dedicated(self) -> Router | None:
        """The router of the separate server; None if there is no such server."""
        return None if self.limiter is None else self.fleet.router


class Validations:
    """Runs the validations of one job. All of its state changes on the event loop only.

    Args:
        rows: the held-out rows.
        tasks: the task of each row; None if no column names tasks.
        state: the job's state, which contains the complete validations.
        fleet: samples the trained policy.
        concurrent: samples validations instead of `fleet`, if training goes on meanwhile.
        play: runs a group and makes it durable.
        keep: makes a summary durable.
        published: whether the store still has the weights.
        moved: called at every change of the state.
        on_validation: called with the step and the metrics of a complete validation.
        given_up: given a lost group, returns the error that ends the job when all rows were lost.
    """

    def __init__(
        self,
        spec: RLTrainingJobSpec,
        rows: Sequence[Row],
        tasks: Sequence[str] | None,
        state: State,
        fleet: Fleet,
        concurrent: ConcurrentValidation | None,
        *,
        play: Callable[[groups.Plan], Coroutine[Any, Any, GroupRecord]],
        keep: Callable[[Summary], Awaitable[None]],
        published: Callable[[WeightsManifest], Awaitable[bool]],
        moved: Callable[[], Awaitable[None]],
        on_validation: Callable[[int, Metrics], None],
        given_up: Callable[[GroupRecord], JobError] = lost,
    ) -> None:
        self._spec = spec
        self._rows = rows
        self._tasks = tasks
        self._state = state
        self._fleet = concurrent.fleet if concurrent else fleet
        self._concurrent = concurrent is not None
        self._play = play
        self._keep = keep
        self._published = published
        self._moved = moved
        self._on_validation = on_validation
        self._given_up = given_up
        self._answered: dict[int, list[GroupRecord]] = {}
        """Answered groups of validations that a predecessor did not complete, or that a rollback repeats."""
        self._refused: set[int] = set()
        """Steps whose validations do not fit the budget, in a job that ends for that reason."""
        self.unfinished: list[int] = []
        """Steps whose validations are due and incomplete, oldest first. The first one runs or is next."""

    @property
    def concurrent(self) -> bool:
        """Whether training goes on during a validation."""
        return self._concurrent

    @property
    def blocks_batches(self) -> bool:
        """Whether the learner gets no batch until a validation is complete."""
        return len(self.unfinished) > (MAX_UNFINISHED if self._concurrent else 0)

    @property
    def problem(self) -> str | None:
        """Why the validation beside training cannot sample; None if nothing is wrong."""
        runs = self._concurrent and self._state.evaluating is not None
        return self._fleet.router.problem() if runs else None

    def look(self, step: int, *, last: bool) -> list[int]:
        """Note a validation of `step` if it is due. Returns the unfinished ones. `last`: no step follows."""
        if self._due(step, last=last) and step not in self.unfinished:
            self.unfinished.append(step)
        return self.unfinished

    async def restore(self, replay: Replay) -> None:
        """Restore what a predecessor left: complete validations, and the answers of incomplete ones."""
        for summary in replay.summaries.values():
            self._concluded(summary)
        if replay.summaries:
            await self._store_score(replay.summaries[max(replay.summaries)])
        for step in sorted(replay.validations.keys() - replay.summaries.keys()):
            standing = driver.standing(replay.validations[step])
            # After a rollback, later steps are taken again from the same groups, so these answers count then.
            if step <= self._state.step and driver.complete(standing, len(self._rows)):
                await self._conclude(step, standing)
            else:
                self._answered[step] = [group for group in standing if group.scored]
        if self._concurrent:
            await self._resume(replay.reports)

    async def _resume(self, reports: Sequence[StepReport]) -> None:
        """Note the validations that a predecessor had not completed while it trained on."""
        newest = max(self._state.evaluations, default=-1)
        for report in reports[:-1]:
            if report.step <= newest or not self._due(report.step, last=False):
                continue
            if await self._published(report.weights):
                self.unfinished.append(report.step)
            else:  # evaluation.everySteps was different then, so the weights were not kept
                logs.event(_log, "validation-skipped", level=logging.WARNING, step=report.step)

    async def updated(self, report: StepReport) -> None:
        """Ask for the weights of the validated step again, because the learner has published them again."""
        if self._concurrent and self._state.evaluating == report.step:
            await self._fleet.want(report.weights)

    async def run(self) -> None:
        """Run the oldest unfinished validation.

        Raises:
            JobError: no row was answered. Its reason is the worst recurring cause, or `EpisodesFailing`.
        """
        step = self.unfinished[0]
        self._state.evaluating = step
        await self._moved()
        try:
            if self._concurrent:
                await self._fleet.want(self._state.weights(step))
            await self._fleet.ready()
            found = await driver.validate(self._plans(step), self._answered.pop(step, []), self._play)
        finally:
            self._state.evaluating = None
        if driver.refused(found):
            self._refused.add(step)
            logs.event(_log, "validation-refused", level=logging.WARNING, step=step, why="BudgetExhausted")
        elif not driver.complete(found, len(self._rows)):
            raise self._given_up(found[0])
        else:
            await self._conclude(step, found)
        self.unfinished.remove(step)
        if self._concurrent and not self.unfinished:
            await self._fleet.release()
        await self._moved()

    def _plans(self, step: int) -> list[groups.Plan]:
        asked, spec = self._spec.evaluation, self._spec
        sampling = Sampling(
            asked.sampling.temperature,
            asked.sampling.top_p,
            spec.evaluation_max_tokens,
            spec.rollout.episode_token_limit,
        )
        return driver.plans(self._rows, step, asked.group_size, sampling, spec.seed)

    def _due(self, step: int, *, last: bool) -> bool:
        asked = self._spec.evaluation
        if step < 0 or not self._rows or step in self._state.evaluations or step in self._refused:
            return False
        return driver.due(step, every=asked.every_steps, at_start=asked.at_start, last=last)

    async def _conclude(self, step: int, found: Sequence[GroupRecord]) -> None:
        """Store a validation's summary. All of its groups are in the spool and in the ledger."""
        limit = self._spec.agent.turn_limit
        summary = Summary.of(step, found, self._spec.evaluation, limit, self._tasks)
        await self._keep(summary)
        await self._store_score(summary)  # before it counts as the last one, so the status shows both
        self._concluded(summary)

    async def _store_score(self, summary: Summary) -> None:
        """Compute the interval of a validation's score for the status.

        A thread computes it, because many tries would block the event loop for too long.
        """
        if (found := await asyncio.to_thread(summary.estimate)) is not None:
            self._state.score = summary.step, in_a_line(found)

    def _concluded(self, summary: Summary) -> None:
        self._state.evaluations[summary.step] = summary.evaluation
        self._state.scores[summary.step] = summary.scored
        self._on_validation(summary.step, summary.metrics)
