"""Metrics of steps: the latest for `/metrics`, all of them for MLflow and the signals."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from headway_analysis.measures import metrics, tasks
from headway_analysis.measures.metrics import Metrics
from headway_api.records import BatchMetrics, GroupRecord, StepReport
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.staleness import idle_steps
from headway_api.status import MlflowRun
from headway_coordinator.metrics.mlflow import Mlflow
from headway_coordinator.metrics.prometheus import is_metric
from headway_coordinator.signals import Signals
from headway_coordinator.spool import Replay, Spool
from headway_coordinator.state import State

COST = "usage/cost_at_step_usd"
READ_AGAIN = 16
"""The number of newest steps whose batches are read again if their metrics were not stored."""


class StepMetrics:
    """The metrics of one job.

    In all methods `again` means that an earlier process may have logged the metrics already.
    """

    def __init__(self, spec: RLTrainingJobSpec, signals: Signals) -> None:
        self._spec = spec
        self.signals = signals
        self._latest: dict[str, Metrics] = {}
        """The latest metrics by source. A new batch replaces all of its source's metrics, so the metrics of a
        tool that is no longer called disappear."""
        self._batches: set[int] = set()
        """Steps whose batches are known. A step that a rollback repeats has the same groups."""
        self._validated = -1
        """The newest step whose validation is shown."""
        self.tasks: Sequence[str] | None = None
        """The task of each training row, if a column names tasks."""
        self.tracker: Mlflow | None = None
        """Logs the metrics, if the spec asks for it."""

    @property
    def run(self) -> MlflowRun | None:
        """The MLflow run to which the metrics are logged, once it exists."""
        return self.tracker.run if self.tracker else None

    def shown(self) -> Metrics:
        """The latest metrics that `/metrics` has a name for."""
        found = {name: value for source in self._latest.values() for name, value in source.items()}
        return {name: value for name, value in found.items() if is_metric(name)}

    def of(self, groups: Sequence[GroupRecord], report: StepReport, idle: Sequence[int]) -> Metrics:
        """The metrics of a step's batch, without the learner's metrics. `idle`: steps without groups."""
        limit = self._spec.agent.turn_limit
        found = metrics.batch(groups, report.step, trained=report.trained, max_turns=limit, idle=idle)
        return found if self.tasks is None else found | tasks.batch(groups, self.tasks)

    def restore(self, spool: Spool, replay: Replay) -> list[BatchMetrics]:
        """Give the signals the metrics that predecessors saw, so that each signal returns to its state.

        Nothing is logged. Returns the metrics that predecessors could not store. Blocking.
        """
        kept, lost, idle = spool.batch_metrics(), list[BatchMetrics](), idle_steps(replay.reports)
        newest = {report.step for report in replay.reports[-READ_AGAIN:]}
        for report in replay.reports[1:]:
            if report.directive is not None:
                continue  # nothing was trained, so there is nothing to judge
            found = kept.get(report.step)
            if found is not None and found.groups != report.groups:
                found = None
            if found is None and report.step in newest:
                again = self.of(spool.batch_of(report), report, idle)
                found = BatchMetrics(step=report.step, groups=report.groups, metrics=again)
                lost.append(found)
            self.signals.recall(report.step, report.metrics | (found.metrics if found else {}))
        return lost

    def batch(
        self, state: State, *, again: bool, cost: Callable[[], str | None] = lambda: None
    ) -> BatchMetrics | None:
        """Take the metrics of the last batch of `state`, once a step has trained it.

        None if no batch was trained, or if its metrics are known already.

        Args:
            cost: returns the cost of the whole job so far, in US dollars; None if nothing has a price. After
                a restart the cost is left out, because it would include later steps.
        """
        report = state.trained
        if report is None or not state.last_batch or report.step in self._batches:
            return None
        found = self.of(state.last_batch, report, state.idle)
        if not again and (spent := cost()) is not None:
            found |= {COST: float(spent)}
        self._batches.add(report.step)
        self._latest |= {"learner": self._latest.get("learner", {}) | report.metrics, "batch": found}
        self.signals.step(report.step, report.metrics | found)
        self._log(report.step, report.metrics | found | self.signals.metrics("step"), again)
        return BatchMetrics(step=report.step, groups=report.groups, metrics=found)

    def validation(self, step: int, found: Metrics, *, again: bool) -> None:
        """Show and log the metrics of a complete validation."""
        if step >= self._validated:
            self._validated, self._latest["validation"] = step, found
        self.signals.validation(step, found)
        self._log(step, {**found, **self.signals.metrics("validation")}, again)

    def test(self, step: int, found: Metrics, *, again: bool) -> None:
        """Show and log the result on the test split."""
        self._latest["test"] = found
        self._log(step, found, again)

    def sync(self, step: int, seconds: float, *, again: bool) -> None:
        """Show and log the `seconds` from a step's report until a server with its weights was in rotation."""
        found = {"timing_s/weight_sync": seconds}
        self._latest["sync"] = found
        self._log(step, found, again)

    def _log(self, step: int, found: Metrics, again: bool) -> None:
        if self.tracker is not None:
            self.tracker.log(found, step, int(time.time() * 1000), again=again)
