"""Where a job stands: what `training` changes, and status, metrics and the learner's API show."""

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
"""Why a job that has ended well has no further step."""


@dataclass(frozen=True)
class Tested:
    """What the test split said at the end."""

    step: int
    """Whose weights were judged."""
    rows: int
    compared: Comparison
    """Of `tuned` with `base`, the untrained weights, where those were kept."""


@dataclass
class State:
    """Changed on the event loop only."""

    reports: list[StepReport] = field(default_factory=list)
    evaluations: dict[int, Evaluation] = field(default_factory=dict)
    """Validations that are complete, by step."""
    scores: dict[int, Mapping[int, Sequence[float]]] = field(default_factory=dict)
    """Of each of them, what every try on every row scored."""
    score: tuple[int, str] | None = None
    """Step of a validation, and its mean external score with half the width of the interval, in words."""
    last_batch: list[GroupRecord] = field(default_factory=list)
    """What the last step with groups was made from; empty before any."""
    tested: Tested | None = None
    """The judgement on the test split, once there is one."""
    finished: FinishedWhy | None = None
    exported: bool = False
    """The folder of the newest step's weights holds all of them, though they were not published whole."""
    evaluating: int | None = None
    """Step whose validation runs now."""
    updated_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    """When anything last went forward: a start of this process, a scored episode, a group, a step."""
    moved_at: float = field(default_factory=time.monotonic)
    """The same moment, monotonic."""

    def moved(self) -> None:
        """Something went forward."""
        self.updated_at, self.moved_at = datetime.now(UTC), time.monotonic()

    in_flight: Counter[str] = field(default_factory=Counter)
    """Episodes that hold a place now, by purpose."""
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Episodes of this process that ended, by outcome and purpose."""
    retried: Counter[str] = field(default_factory=Counter)
    """Those of them that were started again after an InfraError, by purpose."""
    abandoned: Counter[str] = field(default_factory=Counter)
    """Groups that this process gave up, by reason."""
    discarded: Counter[str] = field(default_factory=Counter)
    """Tokens of this process's groups that were used for nothing, by why."""

    @property
    def durable(self) -> bool:
        """Whether the newest step has a whole checkpoint."""
        return bool(self.reports) and self.reports[-1].durable == self.step

    @property
    def validated(self) -> list[int]:
        """Validated steps, the best first."""
        return [evaluation.step for evaluation in ranked(self.evaluations.values())]

    def weights(self, step: int) -> WeightsManifest:
        """What the learner published of a step that was taken."""
        return next(report.weights for report in reversed(self.reports) if report.step == step)

    @property
    def in_force(self) -> InForce:
        """What the next step is trained under, if nothing is changed."""
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
        """The newest step that went back to older weights: what was sampled before is of a policy that is
        gone. 0 before any."""
        return newest_return(self.reports)

    @property
    def step(self) -> int:
        """Steps taken; -1 before the learner has announced its untrained weights."""
        return self.reports[-1].step if self.reports else -1
