"""The state of a job: `training` changes it; status, metrics and the learner's API show it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from headway_analysis.comparison import Comparison
from headway_analysis.measures.episodes import Evaluation, ranked
from headway_api.in_force import InForce
from headway_api.records import GroupRecord, StepReport, WeightsManifest
from headway_api.staleness import idle_steps, newest_return

FinishedWhy = Literal["MaxSteps", "MaxEpochs", "BudgetExhausted"]
"""Why a job that succeeded has no further step."""


@dataclass(frozen=True)
class Tested:
    """The result on the test split."""

    step: int
    """The step whose weights were judged."""
    rows: int
    compared: Comparison
    """`tuned` compared with `base`, the untrained weights, if those are stored."""


@dataclass(kw_only=True)
class ProgressTime:
    """When the job last made progress: a start of this process, a scored episode, a group or a step."""

    updated_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    moved_at: float = field(default_factory=time.monotonic)
    """The moment of `updated_at`, in monotonic seconds."""

    def moved(self) -> None:
        """Note progress."""
        self.updated_at, self.moved_at = datetime.now(UTC), time.monotonic()


@dataclass
class State(ProgressTime):
    """Changes on the event loop only."""

    reports: list[StepReport] = field(default_factory=list)
    evaluations: dict[int, Evaluation] = field(default_factory=dict)
    """Complete validations, by step."""
    scores: dict[int, Mapping[int, Sequence[float]]] = field(default_factory=dict)
    """By validated step and by row: the score of every try."""
    score: tuple[int, str] | None = None
    """The step of a validation, and its mean external score with half the interval's width, as text."""
    last_batch: list[GroupRecord] = field(default_factory=list)
    """The groups of the last step that had any; empty before that."""
    tested: Tested | None = None
    """The result on the test split, once there is one."""
    finished: FinishedWhy | None = None
    exported: bool = False
    """Whether the folder of the newest step's weights is complete now, although the learner first published
    only a part of them."""
    evaluating: int | None = None
    """The step whose validation runs now."""
    in_flight: Counter[str] = field(default_factory=Counter)
    """Episodes that hold a place now, by purpose."""
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Episodes of this process that ended, by outcome and purpose."""
    retried: Counter[str] = field(default_factory=Counter)
    """Episodes that were started as retries after an InfraError, by purpose."""
    abandoned: Counter[str] = field(default_factory=Counter)
    """Groups that this process abandoned, by reason."""
    discarded: Counter[str] = field(default_factory=Counter)
    """Tokens of this process's groups that were discarded, by reason."""

    @property
    def durable(self) -> bool:
        """Whether the newest step has a complete checkpoint."""
        return bool(self.reports) and self.reports[-1].durable == self.step

    @property
    def validated(self) -> list[int]:
        """Validated steps, the best first."""
        return [evaluation.step for evaluation in ranked(self.evaluations.values())]

    def weights(self, step: int) -> WeightsManifest:
        """The weights that the learner published for a step that was taken."""
        return next(report.weights for report in reversed(self.reports) if report.step == step)

    @property
    def in_force(self) -> InForce:
        """The settings of the next step, if nothing changes."""
        return self.reports[-1].in_force if self.reports else InForce()

    @property
    def trained(self) -> StepReport | None:
        """The report of the newest step with groups; None before any."""
        return next((r for r in reversed(self.reports) if r.step > 0 and r.directive is None), None)

    @property
    def idle(self) -> list[int]:
        """Steps without groups."""
        return idle_steps(self.reports)

    @property
    def went_back(self) -> int:
        """The newest step that went back to older weights; 0 if no step did.

        The policy that sampled the groups of earlier steps is gone.
        """
        return newest_return(self.reports)

    @property
    def step(self) -> int:
        """The last step taken; -1 before the learner has announced its untrained weights."""
        return self.reports[-1].step if self.reports else -1
