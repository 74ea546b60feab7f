"""What `spec.failurePolicy.rules` have decided, as `status.failures` keeps it."""

from datetime import datetime
from typing import Annotated, Final

from pydantic import Field

from headway_api.base import StatusModel
from headway_api.field_types import Count, Word
from headway_api.spec.failures import FailureAction

MAX_MATCHED: Final = 16
"""Number of decisions that are kept."""
MAX_PODS: Final = 1024
PodName = Annotated[str, Field(max_length=253)]
ConditionName = Annotated[str, Field(max_length=316)]


class MatchedFailure(StatusModel):
    """A failure that a rule decided on."""

    time: datetime
    """When the process ended."""
    role: Word
    """Role of the pod."""
    pod: PodName
    """The pod."""
    ending: Count
    """Which end of the pod's process this was, counted from 1. 0: the pod itself failed."""
    exit_code: Annotated[int, Field(ge=0)] | None = None
    """Exit code of the process. Absent if there is none."""
    condition: ConditionName | None = None
    """Condition of the pod that the rule matched. Absent if it matched the exit code."""
    action: FailureAction
    """What the rule asks for."""
    rule: Count
    """Index of the rule in spec.failurePolicy.rules, from 0."""


class PodEndings(StatusModel):
    """Which ends of a pod's processes have been judged. Servers and brokers restart them in place."""

    pod: PodName
    """The pod."""
    endings: Count = 0
    """Judged ends of the role's container."""
    others: Count = 0
    """Judged restarts of the pod's other containers."""
    over: bool = False
    """Whether the failure of the pod itself has been judged."""
    restarting: bool = False
    """Whether the pod must be deleted because a rule restarts its role."""


class RoleFailures(StatusModel):
    """Failures of the servers or brokers of one Deployment."""

    role: Word
    """Role of its pods."""
    unit: Word = ""
    """Which set of servers, suite or judge of the role. Absent if the role has one Deployment."""
    counted: Count = 0
    """Failures that count against spec.failurePolicy.maxRestarts."""
    ignored: Count = 0
    """Failures that a rule ignored."""


class Failures(StatusModel):
    """What the rules have decided. Absent if there is no rule, or nothing has failed."""

    matched: Annotated[list[MatchedFailure], Field(max_length=MAX_MATCHED, default_factory=list)]
    """The last failures that a rule decided on, oldest first."""
    roles: Annotated[list[RoleFailures], Field(max_length=64, default_factory=list)]
    """Counts by Deployment. The Jobs of coordinator and learner keep their own counts."""
    pods: Annotated[list[PodEndings], Field(max_length=MAX_PODS, default_factory=list)]
    """Existing pods of Deployments that have failed before."""
