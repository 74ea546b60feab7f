"""RLEvalJob: several candidates on the same rows, side by side. Its schema is installed ahead of its run."""

from typing import Annotated, Literal

from pydantic import Field

from headway_api.base import Model, SpecModel
from headway_api.rules import Rule
from headway_api.spec.agent import AgentSpec
from headway_api.spec.data import Dataset
from headway_api.spec.environment import EnvironmentSpec, RewardSpec
from headway_api.spec.lifecycle import BudgetSpec, OutputSpec, TrackingSpec
from headway_api.spec.metadata import NAME_RULES, Metadata
from headway_api.spec.model import name_of_hub, revision_of_hub
from headway_api.spec.rollout import ServersSpec
from headway_api.spec.training import EPISODE_WITHIN_SANDBOX, Deadline
from headway_api.spec.trust import MeasureSpec
from headway_api.spec.types import Decimal, Label, ObjectName, SecretRef, Subdomain, Uri, uri_scheme
from headway_api.status import RLEvalJobStatus


class CandidateModel(SpecModel):
    """A model as it comes."""

    validations = (revision_of_hub("the revision of a candidate's model"),)

    base: Annotated[
        Uri, uri_scheme("the model of a candidate", "hf", "s3"), name_of_hub("the model of a candidate")
    ]
    """Where the model comes from: hf://ORGANIZATION/NAME or s3://BUCKET/PREFIX."""
    revision: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Branch, tag or commit of a hf:// model."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Number format of the weights."""


class CandidateCheckpoint(SpecModel):
    """What a training job in the same namespace made."""

    job: Label
    """Name of the RLTrainingJob."""
    which: Literal["best", "latest"] = "best"
    """Its checkpoint that validated best, or its last."""


class CandidateEndpoint(SpecModel):
    """A model behind an OpenAI-compatible endpoint."""

    url: Annotated[Uri, uri_scheme("the url of a candidate's endpoint", "http", "https")]
    """Base URL of the endpoint."""
    model: Annotated[str, Field(min_length=1, max_length=256)]
    """Name of the model there."""
    secret_ref: SecretRef | None = None
    """Secret whose key `token` is sent as the bearer token."""


class Candidate(SpecModel):
    """One model to measure."""

    validations = (
        Rule(
            "[has(self.model), has(self.checkpoint), has(self.endpoint)].filter(given, given).size() == 1",
            "a candidate takes exactly one of model, checkpoint and endpoint",
            lambda self: [self.model, self.checkpoint, self.endpoint].count(None) == 2,
        ),
    )

    name: Label
    """Name of the candidate in the results."""
    model: CandidateModel | None = None
    """A model as it comes."""
    checkpoint: CandidateCheckpoint | None = None
    """A training job's result."""
    endpoint: CandidateEndpoint | None = None
    """A model served elsewhere."""


class Gate(SpecModel):
    """What must hold for the job to succeed, so that a promotion may wait on it."""

    candidate: Label
    """Candidate that is judged."""
    metric: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)] = "external_score"
    """Metric it is judged by."""
    minimum: Decimal | None = None
    """Lowest value that passes."""
    must_beat: Label | None = None
    """Candidate whose value must be exceeded."""


class RLEvalJobSpec(SpecModel):
    """What to measure, on what. Immutable but for the fields that say otherwise."""

    mutable = frozenset({"suspend", "rollout", "active_deadline_seconds", "ttl_seconds_after_finished"})
    validations = (
        EPISODE_WITHIN_SANDBOX,
        Rule(
            "!has(self.gate) || self.candidates.exists_one(c, c.name == self.gate.candidate)",
            "spec.gate.candidate must be the name of a candidate",
            lambda self: self.gate is None or self.gate.candidate in {c.name for c in self.candidates},
            "gate",
        ),
        Rule(
            "!has(self.gate) || !has(self.gate.mustBeat) || "
            "self.candidates.exists_one(c, c.name == self.gate.mustBeat)",
            "spec.gate.mustBeat must be the name of a candidate",
            lambda self: (
                self.gate is None
                or self.gate.must_beat is None
                or self.gate.must_beat in {c.name for c in self.candidates}
            ),
            "gate",
        ),
    )

    suspend: bool = False
    """true stops every pod of the job until it is false again. May be changed while the job runs."""
    seed: Annotated[int, Field(ge=0, le=2147483647)] = 0
    """Seed of every draw; the same for each candidate."""
    candidates: Annotated[
        tuple[Candidate, ...],
        Field(
            min_length=1,
            max_length=8,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ]
    """Models to measure, side by side: the same rows, the same seeds."""
    data: Dataset
    """The prompts."""
    agent: AgentSpec = AgentSpec()
    """Who acts in an episode."""
    environment: EnvironmentSpec
    """What an episode acts on."""
    reward: RewardSpec = RewardSpec()
    """What a reward may be."""
    rollout: ServersSpec = ServersSpec()
    """How episodes are sampled."""
    evaluation: MeasureSpec = MeasureSpec()
    """What is measured."""
    gate: Gate | None = None
    """What must hold for the job to succeed."""
    budget: BudgetSpec | None = None
    """The most the job may cost."""
    tracking: TrackingSpec = TrackingSpec()
    """Where metrics go besides Prometheus."""
    readiness_policy: Literal["Accepted", "Running", "Succeeded"] = "Succeeded"
    """When the Ready condition is true. Succeeded makes the job a gate for whatever waits on it."""
    active_deadline_seconds: Deadline | None = None
    """Longest the job may take, in seconds. May be changed while the job runs."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31536000)] | None = None
    """Delete the job so many seconds after it ended. May be changed while the job runs."""
    managed_by: Annotated[str, Field(pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$", max_length=63)] | None = None
    """Controller that runs the job, as domain/name. Absent: this operator."""
    service_account_name: Subdomain | None = None
    """Service account of coordinator and rollout servers. Absent: one made for the job."""
    image_pull_secrets: Annotated[tuple[ObjectName, ...], Field(max_length=8)] = ()
    """Secrets to pull the job's images with."""
    output: OutputSpec
    """Where the results go."""


class RLEvalJob(Model):
    """Several models measured on the same rows. Installed, but not run by this version."""

    validations = (
        *NAME_RULES,
        Rule(
            "!has(self.spec)",
            "RLEvalJob is installed but not run by this version; evaluate inside a training job with "
            "spec.evaluation",
            lambda self: False,
        ),
    )

    api_version: Literal["headway.dev/v1alpha1"] = "headway.dev/v1alpha1"
    """Version of the schema."""
    kind: Literal["RLEvalJob"] = "RLEvalJob"
    """Kind of the object."""
    metadata: Metadata
    """Standard object metadata."""
    spec: RLEvalJobSpec
    """What to measure, on what."""
    status: RLEvalJobStatus = Field(default_factory=RLEvalJobStatus)
    """What has become of it. Not written yet."""
