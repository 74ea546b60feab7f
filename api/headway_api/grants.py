"""What a namespace's budget has granted to its jobs: `status` of an RLBudget, and `status.grant` of a job.

The operator writes both, the RLBudget's status first. So the grants of all jobs are never above what the
RLBudget shows as granted, even if the operator is interrupted.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from headway_api.base import StatusModel
from headway_api.conditions import Condition
from headway_api.field_types import Word

Name = Annotated[str, Field(max_length=253)]
NAMESPACE: Final = "namespace."
"""Prefix of the names of a grant's limits in a job's `status.budget`."""
MAX_LIMITS: Final = 16
MAX_JOBS: Final = 500
"""Jobs that may share one RLBudget at a time."""
_BY_NAME: Final = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
_BY_UID: Final = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uid"]}


class Part(StatusModel):
    """What a job may use of one limit of its namespace's budget."""

    name: Word
    """`usd`, or `tokens.` and the class."""
    granted: Word
    """The most that the job may use, including what it has used."""
    refused: Word | None = None
    """What the job needs and the budget cannot give. Absent: the job has what it needs."""
    late: bool | None = None
    """Whether the job began before this limit existed. Its usage is unknown until the job reports it."""


class Grant(StatusModel):
    """What the namespace's RLBudget lets a job use."""

    parts: Annotated[
        list[Part], Field(max_length=MAX_LIMITS, default_factory=list, json_schema_extra=_BY_NAME)
    ]
    """What the job may use, by limit. The job begins nothing that would exceed these limits."""


class GrantedJob(StatusModel):
    """A job that shares an RLBudget."""

    uid: Word
    """metadata.uid of the job."""
    kind: Word
    """RLTrainingJob or RLEvalJob."""
    name: Name
    """Name of the job."""
    parts: Annotated[
        list[Part], Field(max_length=MAX_LIMITS, default_factory=list, json_schema_extra=_BY_NAME)
    ]
    """What the job was granted."""


class SharedLimit(StatusModel):
    """One limit of an RLBudget."""

    name: Word
    """`usd`, or `tokens.` and the class."""
    limit: Word
    """The most that the namespace's jobs may use together."""
    ended: Word
    """What ended jobs have used, and everything that was granted to jobs that were deleted before they
    ended."""
    granted: Word
    """What jobs that have not ended may use, including what they have used."""
    spent: Word
    """What all jobs have used, as far as they have reported it."""
    left: Word
    """The rest of the limit: neither used by ended jobs nor granted to other jobs."""


class RLBudgetStatus(StatusModel):
    """How much of a namespace's budget is used."""

    observed_generation: Annotated[int, Field(ge=-1)] | None = None
    """Generation of the spec that this status describes."""
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
        list[SharedLimit], Field(max_length=MAX_LIMITS, default_factory=list, json_schema_extra=_BY_NAME)
    ]
    """Each limit of the spec."""
    jobs: Annotated[
        list[GrantedJob], Field(max_length=MAX_JOBS, default_factory=list, json_schema_extra=_BY_UID)
    ]
    """Jobs that have not ended, and what each was granted."""
    ended_jobs: Annotated[int, Field(ge=0)] = 0
    """Number of ended jobs whose usage is in `limits[].ended`."""
