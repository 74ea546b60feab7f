"""Estimates what a whole training job will use and cost. An estimate has one of three bases:

data        rows, prompts and limits, once a sandbox has shown how an episode begins
preflight   the episodes of the preflight, once it is over
running     the usage and the episodes so far, once a step was taken
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from headway_analysis.estimate import plan as plans
from headway_analysis.estimate import whole
from headway_analysis.estimate.amounts import NOTHING
from headway_analysis.estimate.before import of_training_job, plan_of
from headway_analysis.estimate.made import Made
from headway_analysis.estimate.measured import NOTHING_MEASURED, Measured
from headway_analysis.estimate.tally import Tally
from headway_analysis.estimate.whole import Estimate
from headway_analysis.preflight.expected import ahead
from headway_api import status as st
from headway_api.artifacts import Layout
from headway_api.prices import Tariff
from headway_api.records import UsageEvent
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.store import Store
from headway_coordinator.dataset import Data
from headway_coordinator.estimate import prompts
from headway_coordinator.estimate.kept import Estimates
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.preflight.run import Ready, Runner
from headway_coordinator.training import Training


class TrainingEstimates(Estimates[Training]):
    """The estimates of one training job.

    They change on the event loop, except that threads add the events of the ledger.
    """

    def __init__(
        self,
        spec: RLTrainingJobSpec,
        layout: Layout,
        store: Store,
        ledger: Ledger,
        tariff: Callable[[], Tariff],
        previous: st.Estimate | None,
    ) -> None:
        """`tariff`: the job's current prices. `previous`: the estimate in a predecessor's status."""
        super().__init__(layout, store, ledger, tariff, previous)
        self._spec = spec
        self._tally = Tally()
        self._heard = 0
        self._running: tuple[tuple[int, ...], Made] | None = None
        """The running estimate, with its inputs."""
        self._baseline = NOTHING_MEASURED
        self.plan = plans.Plan(0, 1, 1, why="the data is not read yet")

    def _learn(self, events: Sequence[UsageEvent]) -> None:
        self._tally.add(events)
        self._heard += 1

    def planned(self, data: Data) -> None:
        """Set the plan: how many episodes and steps the job's data and spec require."""
        self.plan = plan_of(
            self._spec, train=len(data.train), validation=len(data.validation), test=len(data.test)
        )

    def before(self, ready: Ready, runner: Runner) -> None:
        """Estimate from data and limits alone, unless a predecessor has done so. Blocking."""
        self._restore()
        if "Data" in self._made:
            return
        spec = self._spec
        column, prompt = spec.data.train.prompt_column, spec.agent.effective_builtin.system_prompt
        found = prompts.lengths(runner.first, ready.renderer, ready.data.train, column, prompt)
        self._keep(of_training_job(spec, self.plan, ready.context_length, found, self.price))

    def measured(self, found: Measured | None, seconds_each: float | None) -> None:
        """Estimate from the finished preflight, unless a predecessor has done so. Blocking.

        Args:
            found: the usage of its episodes; None if unknown.
            seconds_each: how long one episode used its server.
        """
        if found is None:
            return
        self._baseline = found
        if "Preflight" in self._made:
            return
        made = whole.by_episodes(
            "Preflight",
            self.plan,
            plans.after_preflight(self.plan),
            found,
            self.price,
            spent=self._spent(self._seconds()),
            ahead=ahead(self.plan, seconds_each),
        )
        if made.cost is not None:
            self._keep(made)
        elif (data := self._made.get("Data")) is not None:
            why = f"{made.why}, so this is from data and limits"
            self._made["Data"] = data.model_copy(update={"why": why})

    def _seconds(self) -> float:
        with self._learning:
            return self._tally.ended - self._tally.began

    def newest(self, of: Training | None) -> Made | None:
        """The running estimate, or else the last one from before training. None before there is one."""
        if of is not None and of.state.step >= 1:
            self._look(of)
        if self._running is not None:
            return self._running[1]
        return self._made.get("Preflight") or self._made.get("Data")

    def _look(self, training: Training) -> None:
        """Estimate again, if there is new and useful input."""
        state = training.state
        ended = int(state.tested is not None) + int(state.finished is not None)
        seen = (self._heard, state.step, training.spooled, training.steps, len(state.evaluations), ended)
        if self._running is not None and self._running[0] == seen:
            return
        found = self._of_running(training)
        if found.cost is not None:
            self._running = seen, self._as_running(found)

    def _of_running(self, training: Training) -> Estimate:
        state, now = training.state, training.remedies.now.algorithm
        plan = replace(
            self.plan, steps=training.steps, batch_size=now.batch_size, group_size=now.group_size, why=""
        )
        steps = max(0, plan.steps - state.step)
        with self._learning:
            tally = self._tally
            lately, evaluated = tally.training(plan.batch_size), tally.evaluation()
            step, pace, seconds = tally.step(state.step), tally.pace(state.step), tally.ended - tally.began
            validation = plans.unvalidated(plan, state.evaluations, tally.answered)
            test = plans.untested(plan, tally.tested)
        left = plans.Left(
            groups=float(max(0, steps * plan.batch_size - training.spooled)),
            steps=float(steps),
            validation=validation,
            test=NOTHING if state.tested is not None or state.finished is not None else test,
        )
        return whole.by_episodes(
            "Running",
            plan,
            left,
            lately if lately.is_sufficient else self._baseline,
            self.price,
            spent=self._spent(seconds),
            evaluated=evaluated,
            step=step,
            ahead=None if pace is None else whole.seconds_by_steps(plan, left, pace),
        )
