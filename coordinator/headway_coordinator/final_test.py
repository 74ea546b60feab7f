"""Compares the weights of the best step with the untrained ones on spec.data.test, once, after training.

Both are sampled on the same rows with the same seeds, one after the other, in one weight slot of the servers.
Their groups are spooled under the names of their steps, so a restart samples only the missing groups.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headway_analysis.comparison import Comparison, compare_all
from headway_analysis.measures import metrics, tasks
from headway_analysis.measures.episodes import ranked
from headway_analysis.measures.metrics import Metrics
from headway_analysis.measures.tries import Rules, Try, TryPlace, tries_of
from headway_api import logs
from headway_api.records import GroupRecord, Purpose, StepReport, WeightsManifest
from headway_api.rows import Row
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator import group as groups
from headway_coordinator.bounds import lost
from headway_coordinator.dataset import Order
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.evaluation import driver
from headway_coordinator.gateway.asks import Sampling
from headway_coordinator.state import State, Tested

BASE: Final = "base"
TUNED: Final = "tuned"
PREFIX: Final = "test"

_log = logging.getLogger(__name__)


def name_of(step: int) -> str:
    """The name under which a step's groups are stored."""
    return f"step-{step}"


class OverBudgetError(Exception):
    """The test does not fit the budget, and the job ends for that reason."""


@dataclass(frozen=True)
class Judged:
    """The steps whose weights are judged."""

    tuned: int
    base: int | None
    """Step 0; None if its weights are not stored any more."""


def chosen(state: State, kept: Sequence[int]) -> Judged:
    """The steps to compare: step 0, and the best validated step with stored weights or else the last step."""
    steps = [evaluation.step for evaluation in ranked(state.evaluations.values())]
    tuned = next((step for step in steps if step in kept), state.step)
    return Judged(tuned, 0 if 0 in kept else None)


class FinalTest:
    """Runs the final test of one job. All of its state changes on the event loop only.

    Args:
        rows: the rows of spec.data.test.
        named: the task of each row; None if no column names tasks.
        state: the job's state, which receives the result.
        fleet: samples the episodes; nobody else asks it for weights meanwhile.
        play: runs a group and makes it durable.
        answered: given a step's name, returns the stored groups, such as a predecessor's.
        published: whether the store still has the weights.
        moved: called at every change of the state.
        on_test: called with the step that was measured, and its metrics.
    """

    def __init__(
        self,
        spec: RLTrainingJobSpec,
        rows: Sequence[Row],
        named: Sequence[str] | None,
        state: State,
        fleet: Fleet,
        *,
        play: Callable[[groups.Plan], Coroutine[Any, Any, GroupRecord]],
        answered: Callable[[str], Awaitable[list[GroupRecord]]],
        published: Callable[[WeightsManifest], Awaitable[bool]],
        moved: Callable[[], Awaitable[None]],
        on_test: Callable[[int, Metrics], None],
    ) -> None:
        self._spec = spec
        self._rows = rows
        self._named = named
        self._state = state
        self._fleet = fleet
        self._play = play
        self._answered = answered
        self._published = published
        self._moved = moved
        self._on_test = on_test
        self.runs = False
        """Whether the test decides which weights the fleet holds."""

    async def run(self) -> None:
        """Run the test, unless the job has no test rows. Call it once training and validations are over.

        Raises:
            JobError: `EpisodesFailing`: no row was answered.
        """
        if not self._rows:
            return
        self.runs = True
        judged = chosen(self._state, await self._kept())
        try:
            await self._judge(judged)
        except OverBudgetError:
            logs.event(_log, "test-refused", level=logging.WARNING, why="BudgetExhausted")

    async def _judge(self, judged: Judged) -> None:
        tuned = await self._measured(judged.tuned)
        base = None
        if judged.base is None:
            logs.event(_log, "test-without-base", level=logging.WARNING)
        else:
            base = tuned if judged.base == judged.tuned else await self._measured(judged.base)
        await self._conclude(judged, tuned, base)

    async def _kept(self) -> list[int]:
        """Steps whose weights servers can load: the folder is complete, and still in the store."""
        last, at = self._state.step, {*self._state.evaluations, 0}
        asked = [report for report in self._state.reports if report.step in at]
        return [report.step for report in asked if report.step == last or await self._is_kept(report)]

    async def _is_kept(self, report: StepReport) -> bool:
        return report.weights.whole and await self._published(report.weights)

    async def _measured(self, step: int) -> list[GroupRecord]:
        have, wanted = await self._answered(name_of(step)), self._plans(step)
        if len(have) < len(wanted):
            self._state.evaluating = step
            await self._moved()
            try:
                await self._fleet.want(self._state.weights(step))
                await self._fleet.ready()
                have = await driver.validate(wanted, have, self._play)
            finally:
                self._state.evaluating = None
        if driver.refused(have):
            raise OverBudgetError
        if not driver.complete(have, len(wanted)):
            raise lost(have[0])
        return have

    def _plans(self, step: int) -> list[groups.Plan]:
        spec, asked = self._spec, self._spec.evaluation
        order = Order(rows=len(self._rows), seed=spec.seed, shuffle=False)
        sampling = Sampling(
            asked.sampling.temperature,
            asked.sampling.top_p,
            spec.evaluation_max_tokens,
            spec.rollout.episode_token_limit,
        )
        return [
            groups.Plan(
                slot=order.slot(position),
                purpose=Purpose.EVALUATION,
                step=0,
                row=row,
                size=asked.group_size,
                sampling=sampling,
                job_seed=spec.seed,
                candidate=name_of(step),
            )
            for position, row in enumerate(self._rows)
        ]

    async def _conclude(
        self, judged: Judged, tuned: Sequence[GroupRecord], base: Sequence[GroupRecord] | None
    ) -> None:
        tries = {TUNED: self._tries(TUNED, tuned)}
        if base is not None:
            tries[BASE] = self._tries(BASE, base)
        # Intervals of many tries take a while, so a thread computes them.
        compared = await asyncio.to_thread(compare_all, tries, self._spec.evaluation.pass_k, BASE, None)
        self._state.tested = Tested(judged.tuned, len(self._rows), compared)
        self._on_test(judged.tuned, self._metrics(tuned) | shown(compared))
        await self._moved()

    def _tries(self, name: str, found: Iterable[GroupRecord]) -> list[Try]:
        rules = Rules(self._spec.evaluation.success_threshold, self._spec.agent.turn_limit)
        return [each for group in found for each in tries_of(group, self._place(name, group.row), rules)]

    def _place(self, name: str, row: int) -> TryPlace:
        data = self._spec.data.test
        column = data.cluster_column if data is not None else None
        return TryPlace(
            candidate=name,
            row=row,
            task=self._named[row] if self._named is not None else "",
            cluster=None if column is None else str(self._rows[row][column]),
        )

    def _metrics(self, found: Sequence[GroupRecord]) -> Metrics:
        asked, limit = self._spec.evaluation, self._spec.agent.turn_limit
        threshold = asked.success_threshold
        shown = metrics.evaluation(found, asked.pass_k, threshold, PREFIX, max_turns=limit)
        if self._named is not None:
            shown |= tasks.shown(PREFIX, tasks.summarize(found, self._named, threshold))
        return shown


def shown(found: Comparison) -> Metrics:
    """Metrics of the untrained weights, and of the difference between the tuned and the untrained ones."""
    values: Metrics = {}
    for measure in ("reward", "external_score"):
        if (base := found.estimate(BASE, measure)) is not None:
            values[f"{PREFIX}/base/{measure}"] = base.value
        if (ahead := found.difference(TUNED, measure)) is not None:
            values[f"{PREFIX}/difference/{measure}"] = ahead.value
            if ahead.low is not None and ahead.high is not None:
                values[f"{PREFIX}/difference_low/{measure}"] = ahead.low
                values[f"{PREFIX}/difference_high/{measure}"] = ahead.high
    return values
