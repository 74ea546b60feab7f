"""Passes the progress of a training job on: to metrics, signals, pauses, tags and traces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from headway_analysis.measures.metrics import Metrics
from headway_api import status as st
from headway_api.artifacts import Layout
from headway_api.config import JobConfig
from headway_api.records import BatchMetrics
from headway_api.store import Store
from headway_coordinator.kept_metrics import KeptMetrics
from headway_coordinator.metrics import otel
from headway_coordinator.metrics.otlp import Otlp
from headway_coordinator.metrics.steps import StepMetrics
from headway_coordinator.metrics.tracking import final_artifacts, tracker_of
from headway_coordinator.pause import Pauses
from headway_coordinator.remedies.tags import RemedyTags
from headway_coordinator.signals import Signals
from headway_coordinator.state import State
from headway_coordinator.training import Training


class TrainingOutlets:
    """Updates metrics, signals, pauses and trackers as a job makes progress. Used on the event loop only."""

    def __init__(
        self,
        job: JobConfig,
        previous: st.RLTrainingJobStatus,
        *,
        keep: Callable[[BatchMetrics], Awaitable[None]],
        cost: Callable[[], str | None],
        otlp: Callable[[], Otlp | None],
        changed: Callable[[], None],
    ) -> None:
        """
        Args:
            previous: the status of a predecessor.
            keep: makes the metrics of a batch durable.
            cost: the bill so far.
            otlp: where traces go; None if no traces are sent.
            changed: called when the status may have changed.
        """
        self._job = job
        self.signals = Signals(job.spec, previous.conditions)
        self.metrics = StepMetrics(job.spec, self.signals)
        self.pauses = Pauses(job, job.spec.collapse, previous)
        self.kept_metrics = KeptMetrics(keep)
        self._tags = RemedyTags(job.spec)
        self._cost, self._otlp, self._changed = cost, otlp, changed
        self.training: Training | None = None
        self.restoring = True
        """Whether the predecessor's state is being restored. Its metrics are then shown again, and are logged
        to MLflow only if the run lacks them."""

    def track(self, stack: AsyncExitStack, store: Store, layout: Layout) -> None:
        """Log to MLflow if the spec asks for it."""
        tracker = self.metrics.tracker = tracker_of(self._job, store, layout)
        if tracker is not None:
            tracker.start()
            stack.push_async_callback(asyncio.to_thread, tracker.close)

    def finish(self, store: Store, layout: Layout) -> None:
        """Have the run in MLflow show the final artifacts."""
        if (tracker := self.metrics.tracker) is not None:
            tracker.finish(final_artifacts(self._job, store, layout))

    def begin(self, training: Training) -> None:
        """Note that a predecessor's state is restored. Signals can pause the job from now on."""
        self.restoring = False
        self.pauses.begin(training.state.step)
        self._judge()

    def moved(self) -> None:
        """Update metrics and status after progress of the job."""
        if self.training is not None:
            found = self.metrics.batch(self.training.state, again=self.restoring, cost=self._cost)
            if found is not None:
                self.kept_metrics.add(found)
                self._trace_step(self.training.state)
            self._judge()
            self._tags.write(self.metrics.tracker, self.training.remedies)
        self._changed()

    def validated(self, step: int, found: Metrics) -> None:
        """Note the metrics of a complete validation."""
        self.metrics.validation(step, found, again=self.restoring)
        self._judge()

    def tested(self, step: int, found: Metrics) -> None:
        """Note the metrics of the test split."""
        self.metrics.test(step, found, again=True)

    def synced(self, step: int, seconds: float) -> None:
        """Note how long after a step's report the first server had the step's weights."""
        self.metrics.sync(step, seconds, again=self.restoring)
        if (otlp := self._otlp()) is not None:
            otlp.give([otel.of_update(self._job, step, time.time(), seconds)])

    def _judge(self) -> None:
        """Pause the job if signals ask for it, once this process knows all that its predecessor knew."""
        if self.training is None or self.restoring:
            return
        step, done = max(0, self.training.state.step), self.training.scheduler.done
        self.pauses.look(step, self.signals.raised, done=done)

    def _trace_step(self, state: State) -> None:
        """Send the trace of the last step."""
        if (otlp := self._otlp()) is not None and state.trained is not None:
            episodes = [each.episode_id for group in state.last_batch for each in group.episodes]
            otlp.give(otel.of_step(self._job, state.trained, episodes))
