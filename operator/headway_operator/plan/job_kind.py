"""Interface for what differs between the kinds of jobs. The rest of planning and status is shared. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from headway_api.conditions import Condition, ConditionType, Reason
from headway_api.config import EvalConfig, JobConfig
from headway_api.document import Json
from headway_api.spec.evaluation import RLEvalJob
from headway_api.spec.training import RLTrainingJob
from headway_api.status import State
from headway_operator.plan.context import Context, Job, JobStatus, Wanted
from headway_operator.plan.health import Issue, RoleHealth
from headway_operator.plan.job_health import JobHealth
from headway_operator.plan.observed import Observed


@dataclass(frozen=True)
class ResolvedReferences:
    """What a job's references to other jobs resolve to, as far as that is known."""

    context: Context
    """The job with the chosen weights."""
    refusals: Sequence[str] = ()
    """Why a job that this job names keeps it from running. The named job may be created again."""
    lacks: Issue | None = None
    """What other jobs do not have yet. This job waits for it, or continues without it."""
    waits_until: datetime | None = None
    """Until when the job waits for what other jobs lack; None if it does not wait."""
    failure: Issue | None = None
    """Why the job fails before it begins: nothing that it names can be used."""
    fresh: bool = False
    """The choice is new: the status must keep it before anything is created from it."""


class JobKind(ABC):
    """One kind of job."""

    model: ClassVar[type[RLTrainingJob] | type[RLEvalJob]]
    roles: ClassVar[tuple[str, ...]]
    """Roles that pods of such a job may have."""
    own: ClassVar[frozenset[ConditionType]]
    """Conditions that the operator owns."""
    field_to_shorten: ClassVar[str]
    """The field of the spec to lower for a shorter run."""

    @abstractmethod
    def sources(self, raw: Json) -> tuple[str, ...]:
        """Names of the training jobs whose weights the stored job waits for."""

    @abstractmethod
    def refusals(self, context: Context) -> list[str]:
        """Why the job cannot be accepted, regardless of other jobs."""

    @abstractmethod
    def resolve(self, context: Context, observed: Observed) -> ResolvedReferences:
        """Resolve the job's references to other jobs."""

    @abstractmethod
    def as_it_runs(self, context: Context, observed: Observed) -> Context:
        """The job with the choices in its status, if its spec is refused and nothing can be resolved."""

    @abstractmethod
    def config(self, context: Context) -> JobConfig | EvalConfig:
        """The form of the job that its own processes read."""

    @abstractmethod
    def preflight_passed(self, job: Job) -> bool:
        """Whether the job may request accelerators."""

    @abstractmethod
    def has_accelerator_workloads(self, observed: Observed) -> bool:
        """Whether workloads that need accelerators have been created already."""

    def samples_first(self, job: Job, observed: Observed) -> bool:
        """Whether the preflight needs servers now, before the `after_preflight` workloads."""
        return False

    def first_servers(self, context: Context) -> list[Wanted]:
        """The servers that the preflight needs."""
        return []

    def first_roles(self, context: Context, observed: Observed, restarts: dict[str, int]) -> list[RoleHealth]:
        """Health of the `first_servers`; `restarts` has the number of restarts of each role so far."""
        return []

    @abstractmethod
    def after_preflight(self, context: Context) -> list[Wanted]:
        """The workloads that wait for the preflight."""

    @abstractmethod
    def after_preflight_roles(
        self, context: Context, observed: Observed, restarts: dict[str, int]
    ) -> list[RoleHealth]:
        """Health of the `after_preflight` workloads; `restarts`: number of restarts of each role so far."""

    @abstractmethod
    def in_use(self, context: Context, observed: Observed) -> Observed:
        """The observed objects without the workloads that are being removed."""

    @abstractmethod
    def resolution(self, context: Context, job_health: JobHealth) -> list[Condition]:
        """Conditions about the job's references to other jobs."""

    @abstractmethod
    def conditions(self, context: Context, job_health: JobHealth) -> list[Condition]:
        """Conditions that only this kind of job has."""

    @abstractmethod
    def own_part(self, status: JobStatus) -> JobStatus:
        """The part of a stored status that the operator writes."""

    @abstractmethod
    def kind_fields(self, context: Context, job_health: JobHealth) -> dict[str, Any]:
        """Fields of the status that only this kind of job has."""

    @abstractmethod
    def completed(self, context: Context) -> Condition:
        """The condition Complete of a job that succeeded."""

    @abstractmethod
    def working_state(self, context: Context) -> tuple[State, Reason]:
        """State, and reason of Progressing, while the job does its work."""

    @abstractmethod
    def coming_up(self, context: Context, job_health: JobHealth) -> State | None:
        """State while the `after_preflight` workloads start; None if they are not wanted yet."""

    def is_own(self, known: Condition) -> bool:
        """Whether the operator owns a condition."""
        return known.type in self.own

    def final_conditions(self, status: JobStatus) -> list[Condition]:
        """Conditions of an ended job that replace the last ones of its coordinator."""
        return []

    def fields_of(self, conditions: Sequence[Condition]) -> dict[str, Any]:
        """Fields of the status that must agree with the operator's own conditions."""
        return {}
