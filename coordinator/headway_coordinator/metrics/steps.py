"""Figures of steps as they come to be known: the latest of each for `/metrics`, all of them for MLflow."""

from __future__ import annotations

import time
from collections.abc import Sequence

from headway_analysis.measures import figures, tasks
from headway_analysis.measures.figures import Figures
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.status import MlflowRun
from headway_coordinator.metrics.mlflow import Mlflow
from headway_coordinator.metrics.prometheus import is_metric
from headway_coordinator.state import State


class StepFigures:
    """Those of one job. `again` says that an earlier process may have logged them already."""

    def __init__(self, spec: RLTrainingJobSpec) -> None:
        self._spec = spec
        self._latest: dict[str, Figures] = {}
        """By where they come from. A tool that is not called any more is not shown any more."""
        self._batches: set[int] = set()
        """Steps whose batches are known. A step that is taken once more is made from the same groups."""
        self._validated = -1
        """The newest step whose validation is shown."""
        self.tasks: Sequence[str] | None = None
        """The task of each training row, where a column names it."""
        self.tracker: Mlflow | None = None
        """Where they are logged, if anywhere."""

    @property
    def run(self) -> MlflowRun | None:
        """The run they are logged to, once it is there."""
        return self.tracker.run if self.tracker else None

    def shown(self) -> Figures:
        """The latest of those that `/metrics` has a name for."""
        found = {name: value for figures in self._latest.values() for name, value in figures.items()}
        return {name: value for name, value in found.items() if is_metric(name)}

    def batch(self, state: State, *, again: bool) -> None:
        """The last batch of `state`, if there is one, has been trained. Saying so twice changes nothing."""
        if not state.last_batch or state.step in self._batches:
            return
        report = state.reports[-1]
        found = figures.batch(
            state.last_batch, state.step, trained=report.trained, max_turns=self._spec.agent.turn_limit
        )
        if self.tasks is not None:
            found |= tasks.batch(state.last_batch, self.tasks)
        self._batches.add(state.step)
        self._latest |= {"learner": self._latest.get("learner", {}) | report.metrics, "batch": found}
        self._log(state.step, report.metrics | found, again)

    def validation(self, step: int, found: Figures, *, again: bool) -> None:
        """A validation is complete."""
        if step >= self._validated:
            self._validated, self._latest["validation"] = step, found
        self._log(step, found, again)

    def test(self, step: int, found: Figures, *, again: bool) -> None:
        """The test split was judged."""
        self._latest["test"] = found
        self._log(step, found, again)

    def sync(self, step: int, seconds: float, *, again: bool) -> None:
        """The first server came into rotation with the weights of a step, after so long."""
        found = {"timing_s/weight_sync": seconds}
        self._latest["sync"] = found
        self._log(step, found, again)

    def _log(self, step: int, found: Figures, again: bool) -> None:
        if self.tracker is not None:
            self.tracker.log(found, step, int(time.time() * 1000), again=again)
