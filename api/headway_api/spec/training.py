"""RLTrainingJob: one run of reinforcement learning, from dataset to trained weights."""

import math
from typing import Annotated, Final, Literal

from pydantic import Field

from headway_api.base import Model, SpecModel
from headway_api.field_types import ObjectName, Subdomain
from headway_api.rules import Rule, frozen_while_running
from headway_api.spec.agent import AgentSpec, BuiltinAgent
from headway_api.spec.algorithm import AlgorithmSpec
from headway_api.spec.data import DataSpec
from headway_api.spec.environment import RewardSpec, TrainingEnvironmentSpec
from headway_api.spec.failures import FailureRule
from headway_api.spec.judge import Judges
from headway_api.spec.learner import CheckpointsSpec, LearnerSpec, OptimizerSpec, ScheduleSpec
from headway_api.spec.lifecycle import MANAGER_PATTERN, BudgetSpec, OutputSpec, TrackingSpec
from headway_api.spec.metadata import NAME_RULES, Metadata
from headway_api.spec.model import ModelSpec
from headway_api.spec.rollout import RolloutSpec
from headway_api.spec.trust import CollapseSpec, EvaluationSpec, PreflightSpec
from headway_api.status import RLTrainingJobStatus

TURNS: Final = BuiltinAgent().max_turns
OWN_TURNS: Final = "(has(self.agent.http) || has(self.agent.sandboxed))"
Deadline = Annotated[int, Field(ge=1, le=31536000)]
EPISODE_WITHIN_SANDBOX: Final = Rule(
    "self.rollout.timeoutSeconds <= self.environment.sandbox.deadlineSeconds",
    "spec.rollout.timeoutSeconds must not be above spec.environment.sandbox.deadlineSeconds: an "
    "episode ends with its sandbox; lower the first, or raise the second",
    lambda self: self.rollout.timeout_seconds <= self.environment.sandbox.deadline_seconds,
    "rollout",
)


class FailurePolicySpec(SpecModel):
    """What happens after failures of the job's own pods. Disruptions (a drained node) do not count. A failure
    of the learner counts once, however many nodes it has."""

    mutable = frozenset({"max_restarts"})

    max_restarts: Annotated[int, Field(ge=0, le=1000)] = 5
    """Restarts of a role before the job fails. May be changed while the job is suspended."""
    rules: Annotated[tuple[FailureRule, ...], Field(max_length=16)] = ()
    """What happens after each kind of failure (docs/failures.md). The first rule that matches decides.
    Without a match, a failure counts and a disruption does not."""


class RLTrainingJobSpec(SpecModel):
    """Which model to train, on which data, how, and where the results go. Immutable, except for the fields
    that say otherwise: create a new job to change the rest."""

    mutable = frozenset(
        {
            "suspend",
            "learner",
            "rollout",
            "schedule",
            "evaluation",
            "budget",
            "checkpoints",
            "failure_policy",
            "active_deadline_seconds",
            "pending_deadline_seconds",
            "ttl_seconds_after_finished",
        }
    )
    validations = (
        frozen_while_running("schedule.maxSteps"),
        frozen_while_running("evaluation.everySteps"),
        frozen_while_running("learner.nodes"),
        frozen_while_running("learner.processesPerNode"),
        frozen_while_running("learner.terminationGracePeriodSeconds"),
        frozen_while_running("checkpoints.everySteps"),
        frozen_while_running("checkpoints.keepLast"),
        frozen_while_running("checkpoints.keepBest"),
        frozen_while_running("failurePolicy.maxRestarts"),
        frozen_while_running("pendingDeadlineSeconds"),
        Rule(
            "has(self.data.validation) || (self.evaluation.everySteps == 0 && !self.evaluation.atStart)",
            "spec.data.validation is needed to evaluate; give it, or switch evaluation off with "
            "spec.evaluation.everySteps: 0 and atStart: false",
            lambda self: (
                self.data.validation is not None
                or (self.evaluation.every_steps == 0 and not self.evaluation.at_start)
            ),
            "data",
        ),
        Rule(
            "self.evaluation.servers == 'Shared' || has(self.data.validation) || has(self.data.test)",
            "spec.evaluation.servers: Dedicated needs spec.data.validation or spec.data.test; give one of "
            "them, or use Shared",
            lambda self: (
                not self.has_validation_server
                or self.data.validation is not None
                or self.data.test is not None
            ),
            "evaluation",
        ),
        Rule(
            "!has(self.model.contextLength) || self.rollout.sampling.maxTokens * "
            f"(has(self.agent.builtin) ? self.agent.builtin.maxTurns : {OWN_TURNS} ? 1 : {TURNS}) "
            "<= self.model.contextLength",
            f"spec.rollout.sampling.maxTokens x spec.agent.builtin.maxTurns ({TURNS} by default; 1 with an "
            "agent of your own) exceeds spec.model.contextLength: lower maxTokens or maxTurns, or raise "
            "contextLength",
            lambda self: (
                self.model.context_length is None
                or self.rollout.sampling.max_tokens * self.agent.planned_turns <= self.model.context_length
            ),
            "model",
        ),
        EPISODE_WITHIN_SANDBOX,
        Rule(
            "self.learner.deepspeed.zeroStage >= 1 || self.model.dtype == 'float32'",
            "spec.learner.deepspeed.zeroStage: 0 needs spec.model.dtype: float32: without ZeRO, DeepSpeed "
            "adds gradients up in bfloat16; use zeroStage: 1, which adds them up in float32",
            lambda self: self.learner.deepspeed.zero_stage >= 1 or self.model.dtype == "float32",
            "learner",
        ),
        Rule(
            "has(self.model.full) || self.learner.weights.backend == 'auto'",
            "spec.learner.weights.backend applies to full weights only: remove it, or train every weight "
            "with spec.model.full",
            lambda self: self.model.full is not None or self.learner.weights.backend == "auto",
            "learner",
        ),
    )

    suspend: bool = False
    """true stops every pod of the job until it is false again. The job then resumes from the last completed
    step. May be changed while the job runs."""
    seed: Annotated[int, Field(ge=0, le=2147483647)] = 0
    """Seed of the order of rows and of every random draw."""
    model: ModelSpec
    """The model to train."""
    data: DataSpec
    """The prompts."""
    agent: AgentSpec = AgentSpec()
    """Who acts in an episode."""
    environment: TrainingEnvironmentSpec
    """Tools, state, reward and external score."""
    reward: RewardSpec = RewardSpec()
    """Which rewards are valid."""
    judges: Judges = ()
    """Models that the environment's reward and score may ask."""
    algorithm: AlgorithmSpec = AlgorithmSpec()
    """How episodes become gradients."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """How gradients change the weights."""
    schedule: ScheduleSpec = ScheduleSpec()
    """How long to train."""
    rollout: RolloutSpec = RolloutSpec()
    """How episodes are sampled."""
    learner: LearnerSpec = LearnerSpec()
    """The processes that train."""
    evaluation: EvaluationSpec = EvaluationSpec()
    """Validation during training."""
    preflight: PreflightSpec = PreflightSpec()
    """Checks before the first gradient."""
    collapse: CollapseSpec = CollapseSpec()
    """What happens when signals are raised."""
    budget: BudgetSpec | None = None
    """The most the job may cost (docs/budget.md). May be changed while the job runs."""
    price_book: Subdomain | None = None
    """ConfigMap of this namespace with the price book for costs, under the key prices.yaml (docs/prices.md).
    Absent: headway-prices if it exists, otherwise the built-in book. The ConfigMap's content may be changed
    while the job runs."""
    checkpoints: CheckpointsSpec = CheckpointsSpec()
    """Which checkpoints are kept."""
    tracking: TrackingSpec = TrackingSpec()
    """Where metrics go besides Prometheus, and where traces go."""
    failure_policy: FailurePolicySpec = FailurePolicySpec()
    """What happens after failures."""
    readiness_policy: Literal["Accepted", "Running", "Succeeded"] = "Running"
    """When the Ready condition is true: once the spec is accepted, once every role runs, or once the job has
    succeeded. Flux, Helm 4, and Argo CD (with the health check of docs/gitops.md) wait for it. A suspended
    job is ready too, unless the policy is Succeeded. A job that paused itself is not ready."""
    active_deadline_seconds: Deadline | None = None
    """Maximum seconds that the job may take, without suspended time. After that the job fails. A job whose
    report is written has 25 minutes more to end. Absent: no limit. May be changed while the job runs."""
    pending_deadline_seconds: Deadline = 3600
    """Maximum seconds that the job may wait for its pods to be ready, without suspended time. After that the
    job fails, and names what it waited for. May be changed while the job is suspended."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31536000)] | None = None
    """Delete the job, its pods and its status this many seconds after it ends. Everything under spec.output
    stays. Absent: keep the job. May be changed while the job runs."""
    managed_by: Annotated[str, Field(pattern=MANAGER_PATTERN, max_length=63)] | None = None
    """Controller that runs the job, as domain/name. Absent: this operator."""
    service_account_name: Subdomain | None = None
    """Service account of learner, coordinator and rollout servers; a sandbox never gets it. Absent: one made
    for the job."""
    image_pull_secrets: Annotated[tuple[ObjectName, ...], Field(max_length=8)] = ()
    """Secrets with which nodes pull the job's images."""
    output: OutputSpec
    """Where the results go."""

    @property
    def evaluation_max_tokens(self) -> int:
        """Maximum tokens of a turn in validation: the limit of spec.evaluation.sampling if it is set,
        otherwise the limit of training."""
        return self.evaluation.sampling.max_tokens or self.rollout.sampling.max_tokens

    @property
    def has_validation_server(self) -> bool:
        """Whether a separate rollout server samples the held-out rows."""
        return self.evaluation.servers == "Dedicated"

    @property
    def validation_episodes(self) -> int:
        """Maximum episodes in flight on the server for held-out rows: maxConcurrency / replicas, rounded
        up."""
        return math.ceil(self.rollout.max_concurrency / self.rollout.replicas)

    @property
    def max_episodes(self) -> int:
        """Maximum episodes in flight on all servers of the job."""
        return self.rollout.max_concurrency + (self.validation_episodes if self.has_validation_server else 0)


class RLTrainingJob(Model):
    """One run of multi-turn reinforcement learning."""

    validations = NAME_RULES

    api_version: Literal["headway.dev/v1alpha1"] = "headway.dev/v1alpha1"
    """Version of the schema."""
    kind: Literal["RLTrainingJob"] = "RLTrainingJob"
    """Kind of the object."""
    metadata: Metadata
    """Standard object metadata."""
    spec: RLTrainingJobSpec
    """Which model to train, on which data, how, and where the results go."""
    status: RLTrainingJobStatus = Field(default_factory=RLTrainingJobStatus)
    """Observed state, written by the platform."""
