"""What a namespace's budget has granted to its jobs: `status` of an RLBudget, and `status.grant` of a job.

The operator writes both, that of the RLBudget first. So what jobs may use never adds up to more than the
RLBudget says was granted, wherever the operator is interrupted.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from headway_api.base import StatusModel
from headway_api.conditions import Condition

Word = Annotated[str, Field(max_length=128)]
Name = Annotated[str, Field(max_length=253)]
NAMESPACE: Final = "namespace."
"""Before the names of a grant's limits in a job's `status.budget`."""
MOST_LIMITS: Final = 16
MOST_JOBS: Final = 500
"""Jobs that may share one RLBudget at a time."""
_BY_NAME: Final = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
_BY_UID: Final = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uid"]}


class Part(StatusModel):
    """What a job may use of one limit of its namespace's budget."""

    name: Word
    """`usd`, or `tokens.` and the class."""
    granted: Word
    """The most that the job may use, with what it has used."""
    refused: Word | None = None
    """What the job needs and the budget cannot give. Absent: it was given what it needs."""
    late: bool | None = None
    """Whether the job ran before this limit was there: what it has used is known once it has told."""


class Grant(StatusModel):
    """What the namespace's RLBudget lets a job use."""

    parts: Annotated[
        list[Part], Field(max_length=MOST_LIMITS, default_factory=list, json_schema_extra=_BY_NAME)
    ]
    """By limit. Nothing that costs begins beyond it."""


class GrantedJob(StatusModel):
    """A job that shares an RLBudget."""

    uid: Word
    """Its metadata.uid."""
    kind: Word
    """RLTrainingJob or RLEvalJob."""
    name: Name
    """Its name."""
    parts: Annotated[
        list[Part], Field(max_length=MOST_LIMITS, default_factory=list, json_schema_extra=_BY_NAME)
    ]
    """What it was granted."""


class SharedLimit(StatusModel):
    """One limit of an RLBudget."""

    name: Word
    """`usd`, or `tokens.` and the class."""
    limit: Word
    """The most that the namespace's jobs may use together."""
    ended: Word
    """What jobs that have ended have used, and all that was granted to jobs that were deleted before."""
    granted: Word
    """What jobs that have not ended may use, with what they have used."""
    spent: Word
    """What all of them have used, as far as their jobs have told."""
    left: Word
    """What is neither used by ended jobs nor granted."""


class RLBudgetStatus(StatusModel):
    """How far a namespace's budget is used up."""

    observed_generation: Annotated[int, Field(ge=-1)] | None = None
    """Generation of the spec that this was said of."""
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=8,
            default_factory=list,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ]
    """Ready, BudgetLow and BudgetExhausted."""
    limits: Annotated[
        list[SharedLimit], Field(max_length=MOST_LIMITS, default_factory=list, json_schema_extra=_BY_NAME)
    ]
    """Each limit of the spec."""
    jobs: Annotated[
        list[GrantedJob], Field(max_length=MOST_JOBS, default_factory=list, json_schema_extra=_BY_UID)
    ]
    """Jobs that have not ended, and what each was granted."""
    ended_jobs: Annotated[int, Field(ge=0)] = 0
    """Jobs that have ended, whose usage is in `limits[].ended`."""
