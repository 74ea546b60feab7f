"""The data of a run from which a page is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway_analysis.report.page.episodes import View
from headway_analysis.report.timeline import EpisodeTiming, StepTime, spent, trace
from headway_api.decisions import Decision
from headway_api.document import JsonView
from headway_api.records import StepReport, ValidationRecord
from headway_api.spec.training import RLTrainingJobSpec


@dataclass(frozen=True)
class TrainingRun:
    """One run of an RLTrainingJob, finished or not."""

    name: str
    namespace: str
    uid: str
    spec: RLTrainingJobSpec | None
    """None if the run's coordinator has not written a spec that this version can read."""
    steps: Sequence[StepReport]
    """The valid step reports, in the order of steps."""
    batch_metrics: Mapping[int, Mapping[str, float]]
    """The metrics of each step's batch, by step."""
    validations: Sequence[ValidationRecord]
    decisions: Sequence[Decision]
    preflight: JsonView | None
    """The report in `preflight.json`."""
    report: JsonView | None
    """`report.json`; None while the job runs."""
    episodes: Sequence[View]
    tokens: bool = False
    """Whether a tokenizer was available, so that the episodes show their tokens."""
    timings: Mapping[int, Sequence[EpisodeTiming]] = field(default_factory=dict)
    """When the episodes of some steps' batches began and ended, by step."""

    @property
    def by_step(self) -> dict[int, dict[str, float]]:
        """Metrics of each step that trained: the learner's own, and those of its batch."""
        trained = (report for report in self.steps if report.groups)
        return {
            report.step: {**report.metrics, **self.batch_metrics.get(report.step, {})} for report in trained
        }

    def times(self) -> list[StepTime]:
        """How the seconds of each step were spent, for steps whose episodes' times are known."""
        reports = {report.step: report for report in self.steps}
        found = (
            spent(reports[step - 1], reports[step], self.timings[step])
            for step in sorted(self.timings)
            if step - 1 in reports
        )
        return [each for each in found if each is not None]

    def trace(self) -> dict[str, Any]:
        """A trace for Perfetto, with the steps whose episodes' times are known, and with those episodes."""
        reports = [report for report in self.steps if report.step in self.timings]
        return trace(reports, [each for step in sorted(self.timings) for each in self.timings[step]])


@dataclass(frozen=True)
class EvaluationRun:
    """One run of an RLEvalJob that has ended."""

    name: str
    namespace: str
    uid: str
    report: JsonView
    """`report.json`."""
    episodes: Sequence[View]
    tokens: bool = False
