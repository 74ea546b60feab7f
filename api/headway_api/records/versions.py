"""Which weights sampled an episode, how the episode ended, and for which purpose it was run."""

from __future__ import annotations

from enum import StrEnum
from functools import total_ordering
from typing import Self

from pydantic import Field

from headway_api.record import Record


@total_ordering
class PolicyVersion(Record):
    """Identifies weights by the training step that made them, and by the learner's incarnation.

    A learner that rolls back starts a new incarnation. So step 12 before a rollback and step 12 after it are
    two versions. They are ordered by incarnation, then step; version 0.0 is the untrained model.
    """

    incarnation: int = Field(ge=0)
    step: int = Field(ge=0)

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.step}"

    def __lt__(self, other: Self) -> bool:
        return (self.incarnation, self.step) < (other.incarnation, other.step)

    @classmethod
    def parse(cls, text: str) -> PolicyVersion:
        """Inverse of `str`."""
        incarnation, step = text.split(".")
        return cls(incarnation=int(incarnation), step=int(step))


class Outcome(StrEnum):
    """How an episode ended. All but the last carry a reward."""

    COMPLETED = "Completed"
    TRUNCATED = "Truncated"
    """The episode reached a limit of turns, tokens or context, or its time limit while it made progress.
    Scored."""
    AGENT_ERROR = "AgentError"
    """The agent itself failed; scored as the environment scores an unfinished episode."""
    INFRA_ERROR = "InfraError"
    """A sandbox or a server failed, or the reward is unusable. The episode is retried, never scored, and in
    no baseline. Its tokens are billed as discarded."""


class Purpose(StrEnum):
    """Why an episode was run. Episodes with another purpose than TRAIN are billed as evaluation, and never
    trained on."""

    TRAIN = "train"
    VALIDATION = "validation"
    EVALUATION = "evaluation"
    """For an RLEvalJob."""
    PREFLIGHT = "preflight"
    """An episode of the untrained model, before a learner exists, for the checks of the preflight."""
