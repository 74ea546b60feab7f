"""What is known of a job before its next step, for the choice of a remedy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from headway_analysis.remedies.course import Course
from headway_analysis.signals.definition import Level
from headway_analysis.signals.watch import Verdict
from headway_api.in_force import InForce
from headway_api.records import StepReport
from headway_api.remedies import applied
from headway_api.signals import SignalName
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.staleness import newest_return


@dataclass(frozen=True)
class Validated:
    """A complete validation."""

    step: int
    score: float
    """Mean external score."""
    rows: Mapping[int, Sequence[float]]
    """Row -> the external score of each try; the reward if the environment gives no external score."""


def is_over(verdict: Verdict) -> bool:
    """Whether a signal is raised and its last reading, if any, is over the threshold."""
    standing = verdict.standing
    over = standing.reading is None or standing.reading.level is Level.OVER
    return standing.state == "Raised" and over


@dataclass(frozen=True)
class RemedyContext:
    """What is known of a job before its next step."""

    spec: RLTrainingJobSpec
    """The job's own spec."""
    reports: Sequence[StepReport]
    """The valid step reports, oldest first. There is at least the report of step 0."""
    course: Course
    verdicts: Sequence[Verdict] = ()
    """The signals' verdicts after the newest step: raised signals first, the most severe of them first."""
    acting: Collection[SignalName] = frozenset()
    """Signals at which the job may be changed."""
    rewards: Mapping[int, float] = field(default_factory=dict)
    """Mean training reward of each step that has trained."""
    validations: Sequence[Validated] = ()
    """The complete validations, the best first."""
    steps: int = 0
    """The number of steps that the job takes in total, with the current settings."""
    groups_left: int = 0
    """Training groups that the data can still yield."""

    @property
    def step(self) -> int:
        """Steps taken."""
        return self.reports[-1].step

    @property
    def went_back(self) -> int:
        """The newest step that went back to older weights; 0 if none did. The weights of the steps just
        before it are no longer used."""
        return newest_return(self.reports)

    @property
    def in_force(self) -> InForce:
        """The settings of the next step, if nothing changes."""
        return self.reports[-1].in_force

    @cached_property
    def now(self) -> RLTrainingJobSpec:
        """The spec with the settings in force."""
        return applied(self.spec, self.in_force)

    @property
    def raised(self) -> list[Verdict]:
        """Raised signals that allow a change, the most severe first, without those that are about to
        clear."""
        return [
            verdict for verdict in self.verdicts if verdict.signal.name in self.acting and is_over(verdict)
        ]

    def verdict(self, name: SignalName) -> Verdict | None:
        """The verdict on a signal; None if it is not judged."""
        return next((verdict for verdict in self.verdicts if verdict.signal.name == name), None)

    def rank(self, step: int) -> int:
        """Rank of the adapter that a step made; 0 if every weight is trained."""
        adapter = next((r.in_force.adapter for r in self.reports if r.step == step), None)
        lora = adapter or self.spec.model.effective_lora
        return 0 if lora is None else lora.rank
