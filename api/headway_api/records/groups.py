"""Groups of episodes, and the batches made of them."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from headway_api.in_force import Directive, InForce
from headway_api.record import Record
from headway_api.records.episodes import EpisodeRecord, Judgement, SampledBy
from headway_api.records.versions import Outcome, Purpose

AbandonReason = Literal["TooFewScored", "NotJudged", "NoStepLeft", "TooOld", "RolledBack", "BudgetExhausted"]
"""Why a training group is not trained: too many of its episodes failed for good; its environment rewards
whole groups, and could not judge this one; no step can take it; its tokens are older than may be trained by
now, since a predecessor of the coordinator wrote it, or a remedy has lowered the bound or the batch; a remedy
went back behind the policy that sampled it; or what it may cost does not fit the job's budget."""


class Abandoned(Record):
    """A training group left the order: its slot returned, and all its tokens are discarded."""

    reason: AbandonReason
    message: str
    """For a person; of failed episodes, what the last one said."""


class GroupRecord(Record):
    """`groupSize` episodes on one prompt: the unit of work, of retry, of delivery and of acknowledgement."""

    group_id: str
    """A function of (purpose, position in the seeded data order), so a replay has the same id."""
    purpose: Purpose
    row: int = Field(ge=0)
    """Index of the prompt in its dataset; samples of suites come after its rows."""
    suite: str | None = None
    """Evaluation: the suite whose sample it is; None: a row of the job's own dataset."""
    epoch: int = Field(ge=0)
    step: int = Field(ge=0)
    """Training: learner step when the group started. Validation: the step that was evaluated.
    Evaluation: 0."""
    candidate: str | None = None
    """Evaluation: name of the candidate."""
    sampled_by: SampledBy = "servers"
    """The job's own servers, an endpoint elsewhere, or nobody: stored episodes that were scored again."""
    model: str | None = None
    """Whose prices hold: a candidate's `endpoint.model`, or its base model. Absent: it is the job's own,
    nobody sampled, or the group was sampled before this was recorded."""
    episodes: list[EpisodeRecord]
    """The final attempt at each index; an index that stayed InfraError is present with that outcome. Only an
    abandoned group may lack some: it had not begun them."""
    discarded: list[EpisodeRecord] = Field(default_factory=list)
    """Earlier attempts that were retried: counted as discarded, never scored or trained."""
    judgements: list[Judgement] = Field(default_factory=list)
    """What the reward of the whole group asked of judges."""
    abandoned: Abandoned | None = None
    """Why nothing of it is trained, where that is so."""
    dropped: dict[str, str] = Field(default_factory=dict)
    """Parameters that an endpoint had refused by then -> the one sent instead, or an empty string."""

    @property
    def scored(self) -> list[EpisodeRecord]:
        """Episodes that take part in the group's baseline."""
        return [e for e in self.episodes if e.outcome is not Outcome.INFRA_ERROR]

    @property
    def unanswered(self) -> bool:
        """Whether it is a group of held-out rows of which nothing was scored. Such a group is kept, but does
        not stand for its id: a later coordinator may run it again."""
        return self.purpose is not Purpose.TRAIN and not self.scored

    @property
    def key(self) -> str:
        """Name it is kept under: its id; of an unanswered group `<id>-<last attempt>`, which no other run of
        it shares."""
        if not self.unanswered:
            return self.group_id
        return f"{self.group_id}-{max(episode.attempt for episode in self.episodes)}"


class Batch(Record):
    """What one step is made of: groups to train on, or a directive and no groups."""

    step: int = Field(ge=1)
    """The step this batch produces: trained on version step-1, yields version step."""
    epoch: int = Field(ge=0)
    groups: list[GroupRecord]
    in_force: InForce = InForce()
    """What holds from this step on. A learner that has something else, since it resumed from an older
    checkpoint, is brought to it before it trains."""
    directive: Directive | None = None
    """With it nothing is trained: the learner does what it says, and the step has no groups."""
    validated: list[int] = Field(default_factory=list)
    """Validated steps, the best first: whose checkpoints are worth keeping."""
    validating: list[int] = Field(default_factory=list)
    """Steps whose validations run or wait: their checkpoints are kept until it is known how good they are."""
    idle: list[int] = Field(default_factory=list)
    """Earlier steps without groups, by which no token ages."""

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
