"""Groups of episodes, and the batches made of them."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from headway_api.in_force import Directive, InForce
from headway_api.record import Record
from headway_api.records.episodes import EpisodeRecord, Judgement, SampledBy
from headway_api.records.versions import Outcome, Purpose
from headway_api.records.waits import BatchWaits

AbandonReason = Literal["TooFewScored", "NotJudged", "NoStepLeft", "TooOld", "RolledBack", "BudgetExhausted"]
"""Why a training group is not trained.

TooFewScored: too many of its episodes failed permanently.
NotJudged: its environment rewards whole groups, and could not judge this group.
NoStepLeft: no step can take it.
TooOld: its tokens are too old to be trained. A predecessor of the coordinator wrote it, or a remedy lowered
the staleness bound or the batch size.
RolledBack: a remedy went back to a step before the group's policy version.
BudgetExhausted: its possible cost does not fit the job's budget.
"""


class Abandoned(Record):
    """A training group that was abandoned: its slot is free again, and all its tokens are discarded."""

    reason: AbandonReason
    message: str
    """Details for people. If episodes failed, the message of the last failed episode."""


class GroupRecord(Record):
    """`groupSize` episodes on one prompt: the unit of work, of retry, of delivery and of acknowledgement."""

    group_id: str
    """A function of (purpose, position in the seeded data order), so a replay has the same id."""
    purpose: Purpose
    row: int = Field(ge=0)
    """Index of the prompt in its dataset. Samples of suites follow the dataset's rows."""
    suite: str | None = None
    """Evaluation: the suite that the sample belongs to; None: a row of the job's own dataset."""
    epoch: int = Field(ge=0)
    step: int = Field(ge=0)
    """Training: learner step when the group started. Validation: the step that was evaluated.
    Evaluation: 0."""
    candidate: str | None = None
    """Evaluation: name of the candidate."""
    sampled_by: SampledBy = "servers"
    """The job's own servers, an endpoint elsewhere, or nobody if stored episodes were scored again."""
    model: str | None = None
    """Model whose prices apply: a candidate's `endpoint.model`, or its base model. Absent: it is the job's
    own model, nobody sampled, or the group is older than this field."""
    episodes: list[EpisodeRecord]
    """The final attempt at each index. If every attempt at an index failed, its outcome is InfraError. Only
    an abandoned group may lack episodes: those that had not begun."""
    discarded: list[EpisodeRecord] = Field(default_factory=list)
    """Earlier attempts that were retried: counted as discarded, never scored or trained."""
    judgements: list[Judgement] = Field(default_factory=list)
    """Questions of the whole group's reward to judges."""
    abandoned: Abandoned | None = None
    """Why the group is not trained. None: it was not abandoned."""
    dropped: dict[str, str] = Field(default_factory=dict)
    """Request parameter that the endpoint had refused so far -> the parameter that was sent instead, or an
    empty string."""

    @property
    def scored(self) -> list[EpisodeRecord]:
        """Episodes that count for the group's baseline."""
        return [e for e in self.episodes if e.outcome is not Outcome.INFRA_ERROR]

    @property
    def unanswered(self) -> bool:
        """Whether it is a group for another purpose than training, without any scored episode. Such a group
        is stored, but a later coordinator may run a group with the same id again."""
        return self.purpose is not Purpose.TRAIN and not self.scored

    @property
    def key(self) -> str:
        """Name under which the group is stored: its id. For an unanswered group it is `<id>-<last attempt>`,
        so that a later run of the same group gets another name."""
        if not self.unanswered:
            return self.group_id
        return f"{self.group_id}-{max(episode.attempt for episode in self.episodes)}"


class Batch(Record):
    """The content of one step: groups to train on, or a directive and no groups."""

    step: int = Field(ge=1)
    """The step that this batch produces. It is trained on version step-1 and yields version step."""
    epoch: int = Field(ge=0)
    groups: list[GroupRecord]
    in_force: InForce = InForce()
    """The settings in force from this step on. A learner with other settings, because it resumed from an
    older checkpoint, applies these before it trains."""
    directive: Directive | None = None
    """If set, nothing is trained: the learner carries out the directive, and the step has no groups."""
    validated: list[int] = Field(default_factory=list)
    """Validated steps, the best first. Their checkpoints are worth keeping."""
    validating: list[int] = Field(default_factory=list)
    """Steps whose validations run or wait. Their checkpoints are kept until their results are known."""
    idle: list[int] = Field(default_factory=list)
    """Earlier steps without groups, which do not count for staleness."""
    waits: BatchWaits | None = None
    """What the batch waited for, besides its episodes; None outside the learner's API."""

    @model_validator(mode="after")
    def _trains_or_changes(self) -> Self:
        if self.directive is not None and self.groups:
            raise ValueError("a batch with a directive has no groups: nothing is trained in its step")
        return self


class Finished(Record):
    """Answer to the learner when there is nothing more to train."""

    reason: Literal["MaxSteps", "MaxEpochs", "BudgetExhausted", "Cancelled"]
    validated: list[int] = Field(default_factory=list)
    """As `Batch.validated`."""
