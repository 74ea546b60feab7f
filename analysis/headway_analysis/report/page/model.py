"""What a page is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway_analysis.report.page.episodes import View
from headway_api.decisions import Decision
from headway_api.records import StepReport, ValidationRecord
from headway_api.spec.training import RLTrainingJobSpec

Json = Mapping[str, Any]


@dataclass(frozen=True)
class TrainingRun:
    """One run of an RLTrainingJob, finished or not."""

    name: str
    namespace: str
    uid: str
    spec: RLTrainingJobSpec | None
    """None of a run whose coordinator did not write it yet."""
    steps: Sequence[StepReport]
    """Those that stand, by step."""
    figures: Mapping[int, Mapping[str, float]]
    """What the batches of steps came to, by step."""
    validations: Sequence[ValidationRecord]
    decisions: Sequence[Decision]
    preflight: Json | None
    """`preflight.json`."""
    report: Json | None
    """`report.json`; None while the job runs."""
    episodes: Sequence[View]
    tokens: bool = False
    """Whether a tokenizer was at hand, so that the episodes show their tokens."""

    @property
    def by_step(self) -> dict[int, dict[str, float]]:
        """Figures of each step that trained: the learner's own, and those of its batch."""
        trained = (report for report in self.steps if report.groups)
        return {report.step: {**report.metrics, **self.figures.get(report.step, {})} for report in trained}


@dataclass(frozen=True)
class EvaluationRun:
    """One run of an RLEvalJob that has ended."""

    name: str
    namespace: str
    uid: str
    report: Json
    """`report.json`."""
    episodes: Sequence[View]
    tokens: bool = False
