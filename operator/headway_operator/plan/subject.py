"""What differs between the kinds of jobs; the rest of a plan and a status is one code for all. Pure."""

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
class Settled:
    """What a job's references to other jobs stand for, as far as that is known."""

    context: Context
    """The job with what has been chosen."""
    refusals: Sequence[str] = ()
    """Why the job cannot run because of a job it names; that one may be made again."""
    lacks: Issue | None = None
    """What other jobs do not have yet and this one needs, or goes on without."""
    waits_until: datetime | None = None
    """Until when the job waits for that; None: it does not."""
    failure: Issue | None = None
    """Why nothing is left to begin with."""
    fresh: bool = False
    """Chosen just now: the status has to keep it before anything is made by it."""


class Subject(ABC):
    """One kind of job."""

    model: ClassVar[type[RLTrainingJob] | type[RLEvalJob]]
    roles: ClassVar[tuple[str, ...]]
    """Roles its pods may have."""
    own: ClassVar[frozenset[ConditionType]]
    """Conditions that are the operator's."""
    shorter: ClassVar[str]
    """Field that makes a run shorter."""

    @abstractmethod
    def sources(self, raw: Json) -> tuple[str, ...]:
        """Names of the training jobs whose weights the job, as stored, waits for."""

    @abstractmethod
    def refusals(self, context: Context) -> list[str]:
        """Why the job cannot be accepted, whatever other jobs there are."""

    @abstractmethod
    def settle(self, context: Context, observed: Observed) -> Settled:
        """What the job's references to other jobs stand for."""

    @abstractmethod
    def as_it_runs(self, context: Context, observed: Observed) -> Context:
        """The job by what its status holds, where its spec is refused and nothing can be settled."""

    @abstractmethod
    def config(self, context: Context) -> JobConfig | EvalConfig:
        """The job as its own processes see it."""

    @abstractmethod
    def preflight_passed(self, job: Job) -> bool:
        """Whether accelerators may be asked for."""

    @abstractmethod
    def begun(self, observed: Observed) -> bool:
        """Whether accelerators have been asked for already."""

    def samples_first(self, job: Job, observed: Observed) -> bool:
        """Whether the preflight needs servers before what else it holds back."""
        return False

    def first_servers(self, context: Context) -> list[Wanted]:
        """The servers that the preflight needs."""
        return []

    def first_roles(self, context: Context, observed: Observed, restarts: dict[str, int]) -> list[RoleHealth]:
        """Their health; `restarts` counts those of each role before."""
        return []

    @abstractmethod
    def heavy(self, context: Context) -> list[Wanted]:
        """The workloads that wait for the preflight."""

    @abstractmethod
    def heavy_roles(self, context: Context, observed: Observed, restarts: dict[str, int]) -> list[RoleHealth]:
        """Their health; `restarts` counts those of each role before."""

    @abstractmethod
    def in_use(self, context: Context, observed: Observed) -> Observed:
        """What is seen without the workloads that are on their way out."""

    @abstractmethod
    def resolution(self, context: Context, situation: JobHealth) -> list[Condition]:
        """What is said of the job's references to other jobs."""

    @abstractmethod
    def conditions(self, context: Context, situation: JobHealth) -> list[Condition]:
        """The conditions that jobs of the other kind do not have."""

    @abstractmethod
    def own_part(self, status: JobStatus) -> JobStatus:
        """Only what the operator writes, of a status as it is stored."""

    @abstractmethod
    def chosen(self, context: Context, situation: JobHealth) -> dict[str, Any]:
        """Fields of the status that jobs of the other kind do not have."""

    @abstractmethod
    def completed(self, context: Context) -> Condition:
        """Complete, of a job that ended well."""

    @abstractmethod
    def at_work(self, context: Context) -> tuple[State, Reason]:
        """State and Progressing's reason while the job does what it is for."""

    @abstractmethod
    def coming_up(self, context: Context, situation: JobHealth) -> State | None:
        """State while what waited for the preflight is not at work yet; None: nothing of it is wanted."""

    def is_own(self, known: Condition) -> bool:
        """Whether a condition is the operator's."""
        return known.type in self.own

    def last_words(self, status: JobStatus) -> list[Condition]:
        """What to say of an ended job in place of what its coordinator said last."""
        return []
