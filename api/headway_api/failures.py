"""What `spec.failurePolicy.rules` have decided, as `status.failures` keeps it."""

from datetime import datetime
from typing import Annotated, Final

from pydantic import Field

from headway_api.base import StatusModel
from headway_api.spec.failures import FailureAction

MATCHED_MOST: Final = 16
"""Decisions that are kept."""
PODS_MOST: Final = 1024
Count = Annotated[int, Field(ge=0)]
Word = Annotated[str, Field(max_length=128)]
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
    """Which end of the pod's process it is, from 1; 0: the pod itself has failed."""
    exit_code: Annotated[int, Field(ge=0)] | None = None
    """Exit code of the process. Absent: there is none."""
    condition: ConditionName | None = None
    """Condition of the pod by which the rule matched. Absent: it matched by the exit code."""
    action: FailureAction
    """What the rule asks for."""
    rule: Count
    """Place of the rule in spec.failurePolicy.rules, from 0."""


class PodEndings(StatusModel):
    """How far the ends of a server's or broker's processes are judged; its pod starts them again in place."""

    pod: PodName
    """The pod."""
    endings: Count = 0
    """Ends of the role's container."""
    others: Count = 0
    """Restarts of the pod's other containers."""
    over: bool = False
    """Whether the failure of the pod itself is judged."""
    restarting: bool = False
    """Whether the pod is to go because a rule starts its role again."""


class RoleFailures(StatusModel):
    """Failures of the servers or brokers of one Deployment."""

    role: Word
    """Role of its pods."""
    unit: Word = ""
    """Which set of servers, suite or judge of the role. Absent: the role has one Deployment."""
    counted: Count = 0
    """Failures that count against spec.failurePolicy.maxRestarts."""
    ignored: Count = 0
    """Failures that a rule ignored."""


class Failures(StatusModel):
    """What the rules have decided. Absent where there is no rule, or nothing has failed."""

    matched: Annotated[list[MatchedFailure], Field(max_length=MATCHED_MOST, default_factory=list)]
    """The last failures that a rule decided on, oldest first."""
    roles: Annotated[list[RoleFailures], Field(max_length=64, default_factory=list)]
    """Counts by Deployment. Those of coordinator and learner stand in their Jobs."""
    pods: Annotated[list[PodEndings], Field(max_length=PODS_MOST, default_factory=list)]
    """Pods of Deployments that there are and that have failed before."""
