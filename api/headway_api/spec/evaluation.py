"""RLEvalJob: several candidates on the same rows and seeds, with a gate on the result."""

from typing import Annotated, Literal

from pydantic import Field

from headway_api.base import Model, SpecModel
from headway_api.rules import Keyed, Rule, frozen_while_running
from headway_api.spec.agent import AgentSpec
from headway_api.spec.data import Dataset
from headway_api.spec.environment import EnvironmentSpec, RewardSpec
from headway_api.spec.gate import OF_AN_EVALUATION, Gate
from headway_api.spec.judge import Judges
from headway_api.spec.lifecycle import MANAGER_PATTERN, BudgetSpec, OutputSpec, TrackingSpec
from headway_api.spec.metadata import NAME_RULES, Metadata
from headway_api.spec.model import name_of_hub, revision_of_hub
from headway_api.spec.rollout import ServersSpec
from headway_api.spec.suite import Suite
from headway_api.spec.training import EPISODE_WITHIN_SANDBOX, Deadline, FailurePolicySpec
from headway_api.spec.trust import MeasureSpec
from headway_api.spec.types import Label, ObjectName, SecretRef, Subdomain, Uri, uri_scheme
from headway_api.status import RLEvalJobStatus

MAX_TOKENS = 4096
"""Most tokens of one turn if the spec does not say."""
BASE_SUFFIX = "-base"
"""Suffix of the name of the candidate that `withBase` adds."""


class CandidateModel(SpecModel):
    """An unchanged model."""

    validations = (revision_of_hub("the revision of a candidate's model"),)

    base: Annotated[
        Uri, uri_scheme("the model of a candidate", "hf", "s3"), name_of_hub("the model of a candidate")
    ]
    """Where the model comes from: hf://ORGANIZATION/NAME or s3://BUCKET/PREFIX."""
    revision: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Branch, tag or commit of a hf:// model."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Number format of the weights."""
    context_length: Annotated[int, Field(ge=64, le=2097152)] | None = None
    """Most tokens of one episode: prompt, every turn and every tool result together. Absent: the
    model's own limit."""


class CandidateCheckpoint(SpecModel):
    """Weights that a training job in the same namespace published. The job may still be running."""

    validations = (
        Rule(
            "!(has(self.which) && has(self.step))",
            "a candidate's checkpoint takes which or step, not both; remove one of them",
            lambda self: self.which is None or self.step is None,
            "step",
        ),
        Rule(
            "!has(self.uri) || has(self.step)",
            "a candidate's checkpoint takes uri only with step: it is the address of that step's weights; "
            "write the step, or remove uri",
            lambda self: self.uri is None or self.step is not None,
            "uri",
        ),
    )

    job: Label
    """Name of the RLTrainingJob."""
    which: Literal["best", "latest"] | None = None
    """best: the weights that validated best so far. latest: the newest published weights. While the job still
    runs, latest is the newest validated weights, which are kept, or those of its newest checkpoint if none
    was validated yet. Absent, without step: best."""
    step: Annotated[int, Field(ge=0, le=1000000)] | None = None
    """The weights of this step. The training job must still keep them: it keeps those of step 0, of validated
    steps and of kept checkpoints (its spec.checkpoints)."""
    uri: Annotated[Uri, uri_scheme("the uri of a candidate's checkpoint", "s3")] | None = None
    """The address of the weights, as the training job's status.checkpoints shows it. The candidate fails if
    the job has this step at another address, because it was deleted and created again. Absent: whatever
    weights the job has of this step."""
    with_base: bool = False
    """true also measures the untrained base model, as a candidate of this name followed by `-base`."""


class CandidateEndpoint(SpecModel):
    """A model behind an OpenAI-compatible endpoint. Its tokens are counted separately from the job's own."""

    url: Annotated[Uri, uri_scheme("the url of a candidate's endpoint", "http", "https")]
    """Base URL of the endpoint, up to and including /v1: the job appends /chat/completions."""
    model: Annotated[str, Field(min_length=1, max_length=256)]
    """Name of the model there."""
    secret_ref: SecretRef | None = None
    """Secret whose key `token` is sent as the bearer token."""
    max_concurrency: Annotated[int, Field(ge=1, le=1024)] = 8
    """Most requests in flight."""
    requests_per_minute: Annotated[int, Field(ge=1, le=1000000)] | None = None
    """Most requests for completions that may start in a minute; requests for the list of models are not
    counted. Absent: only maxConcurrency limits them."""


class CandidateRescore(SpecModel):
    """Episodes of an earlier run, scored again by this job's environment. No token is sampled.

    A fresh sandbox executes the recorded tool calls again; then the environment judges.
    """

    validations = (
        Rule(
            "has(self.candidate) != has(self.step)",
            "a candidate's rescore takes exactly one of candidate (of an RLEvalJob) and step (a validation "
            "of an RLTrainingJob)",
            lambda self: (self.candidate is None) != (self.step is None),
        ),
    )

    uri: Annotated[Uri, uri_scheme("the uri of a candidate's rescore", "s3")]
    """Folder of the run: status.artifacts.uri of the job that made it."""
    candidate: Label | None = None
    """Candidate of the RLEvalJob whose episodes are scored again."""
    step: Annotated[int, Field(ge=0, le=1000000)] | None = None
    """Step of the RLTrainingJob whose validation is scored again."""


class Candidate(SpecModel):
    """One model to measure."""

    validations = (
        Rule(
            "[has(self.model), has(self.checkpoint), has(self.endpoint), has(self.rescore)]"
            ".filter(given, given).size() == 1",
            "a candidate takes exactly one of model, checkpoint, endpoint and rescore",
            lambda self: [self.model, self.checkpoint, self.endpoint, self.rescore].count(None) == 3,
        ),
    )

    name: Annotated[Label, Field(max_length=40)]
    """Name of the candidate in the results."""
    model: CandidateModel | None = None
    """An unchanged model."""
    checkpoint: CandidateCheckpoint | None = None
    """A training job's result."""
    endpoint: CandidateEndpoint | None = None
    """A model served elsewhere."""
    rescore: CandidateRescore | None = None
    """A stored run, scored again."""


def _named(self: "RLEvalJobSpec", name: str | None) -> bool:
    return name is None or name in self.candidate_names


_NAMED = (
    "self.candidates.exists(c, c.name == {0} || "
    "(has(c.checkpoint) && c.checkpoint.withBase && c.name + '" + BASE_SUFFIX + "' == {0}))"
)


class RLEvalJobSpec(SpecModel):
    """What to measure, on what. Immutable, except for the fields that say otherwise."""

    mutable = frozenset(
        {
            "suspend",
            "rollout",
            "budget",
            "failure_policy",
            "active_deadline_seconds",
            "pending_deadline_seconds",
            "ttl_seconds_after_finished",
        }
    )
    validations = (
        frozen_while_running("failurePolicy.maxRestarts"),
        frozen_while_running("pendingDeadlineSeconds"),
        Rule(
            "!has(self.budget) || self.budget.onExhausted != 'Drain'",
            "spec.budget.onExhausted: Drain would compare candidates on part of the rows; write Suspend or "
            "Fail",
            lambda self: self.budget is None or self.budget.on_exhausted != "Drain",
            "budget",
        ),
        EPISODE_WITHIN_SANDBOX,
        Rule(
            "!has(self.failurePolicy.rules) || "
            "!self.failurePolicy.rules.exists(r, has(r.role) && r.role == 'learner')",
            "spec.failurePolicy.rules: role learner is of training jobs: an evaluation has no learner; "
            "remove the rule",
            lambda self: all(rule.role != "learner" for rule in self.failure_policy.rules),
            "failurePolicy",
        ),
        Rule(
            "!has(self.output.roleSecretRefs) || !has(self.output.roleSecretRefs.learner)",
            "spec.output.roleSecretRefs.learner is of training jobs: an evaluation has no learner; remove it",
            lambda self: self.output.role_secret_refs is None or self.output.role_secret_refs.learner is None,
            "output",
        ),
        Rule(
            "!has(self.gate) || " + _NAMED.format("self.gate.candidate"),
            "spec.gate.candidate must be the name of a candidate",
            lambda self: self.gate is None or _named(self, self.gate.candidate),
            "gate",
        ),
        Rule(
            "!has(self.gate) || !has(self.gate.mustBeat) || " + _NAMED.format("self.gate.mustBeat"),
            "spec.gate.mustBeat must be the name of a candidate",
            lambda self: self.gate is None or _named(self, self.gate.must_beat),
            "gate",
        ),
        Rule(
            "!has(self.baseline) || " + _NAMED.format("self.baseline"),
            "spec.baseline must be the name of a candidate",
            lambda self: _named(self, self.baseline),
            "baseline",
        ),
        Rule(
            "!has(self.suites) || self.suites.all(s, self.rollout.timeoutSeconds <= "
            "s.sandbox.deadlineSeconds)",
            "spec.rollout.timeoutSeconds must not be above sandbox.deadlineSeconds of a suite: an episode "
            "ends with its sandbox; lower the first, or raise the second",
            lambda self: all(
                self.rollout.timeout_seconds <= suite.sandbox.deadline_seconds for suite in self.suites
            ),
            "suites",
        ),
        Rule(
            "!has(self.suites) || self.suites.all(s, self.suites.exists_one(t, t.name == s.name))",
            "the names of suites must differ; rename one of those that are the same",
            lambda self: len({suite.name for suite in self.suites}) == len(self.suites),
            "suites",
        ),
        Rule(
            "!has(self.suites) || self.evaluation.sampling.temperature > 0.0 || "
            "self.suites.all(s, s.epochs == 1)",
            "epochs above 1 of a suite needs spec.evaluation.sampling.temperature above 0: at 0 every try "
            "gives the same answer",
            lambda self: (
                self.evaluation.sampling.temperature > 0 or all(suite.epochs == 1 for suite in self.suites)
            ),
            "suites",
        ),
        Rule(
            "self.candidates.all(c, !(has(c.checkpoint) && c.checkpoint.withBase) || "
            f"!self.candidates.exists(d, d.name == c.name + '{BASE_SUFFIX}'))",
            "a candidate with checkpoint.withBase adds one of its name with -base behind it; rename the "
            "candidate that has that name already",
            lambda self: len(set(self.candidate_names)) == len(self.candidate_names),
            "candidates",
        ),
        *OF_AN_EVALUATION,
    )

    suspend: bool = False
    """true stops every pod of the job until it is false again; results so far are kept. May be changed while
    the job runs."""
    seed: Annotated[int, Field(ge=0, le=2147483647)] = 0
    """Seed of every random draw. A try of a row has the same seed for each candidate."""
    candidates: Annotated[
        tuple[Candidate, ...],
        Field(min_length=1, max_length=8),
        Keyed("name"),
    ]
    """Models to measure, side by side: the same rows, the same seeds."""
    baseline: Label | None = None
    """Candidate that the others are compared with, pair by pair. Absent: that of gate.mustBeat, otherwise the
    first one."""
    parallelism: Annotated[int, Field(ge=1, le=8)] = 1
    """Sets of rollout servers that run at one time. Candidates of one base model share a set. Other sets
    start when a set is done."""
    data: Dataset
    """The prompts."""
    agent: AgentSpec = AgentSpec()
    """Who acts in an episode."""
    environment: EnvironmentSpec
    """What an episode acts on."""
    reward: RewardSpec = RewardSpec()
    """What a reward may be."""
    judges: Judges = ()
    """Models that the environment's reward and score may ask. Suites have scorers of their own."""
    suites: Annotated[
        tuple[Suite, ...],
        Field(
            max_length=4,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    """Tasks of Inspect AI that every candidate is also measured on, after the rows of data. Candidates of
    rescore are left out: no model samples for them."""
    rollout: ServersSpec = ServersSpec()
    """How episodes are sampled. replicas counts the servers of each set."""
    evaluation: MeasureSpec = MeasureSpec()
    """What is measured."""
    gate: Gate | None = None
    """What must hold for the job to succeed."""
    budget: BudgetSpec | None = None
    """The most the job may cost (docs/budget.md). May be changed while the job runs."""
    price_book: Subdomain | None = None
    """ConfigMap of this namespace with the price book for costs, under the key prices.yaml (docs/prices.md).
    Absent: headway-prices if it exists, otherwise the built-in book. The ConfigMap's content may be changed
    while the job runs."""
    tracking: TrackingSpec = TrackingSpec()
    """Where metrics go besides Prometheus."""
    failure_policy: FailurePolicySpec = FailurePolicySpec()
    """What happens after failures."""
    readiness_policy: Literal["Accepted", "Running", "Succeeded"] = "Succeeded"
    """When the Ready condition is true. Succeeded makes the job a gate for whatever waits for that
    condition."""
    active_deadline_seconds: Deadline | None = None
    """Most seconds that the job may take. May be changed while the job runs."""
    pending_deadline_seconds: Deadline = 3600
    """Most seconds to wait for a candidate to exist, and for a role's pods to be ready. May be changed while
    the job is suspended."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31536000)] | None = None
    """Delete the job this many seconds after it ends. Absent: keep it. May be changed while the job runs."""
    managed_by: Annotated[str, Field(pattern=MANAGER_PATTERN, max_length=63)] | None = None
    """Controller that runs the job, as domain/name. Absent: this operator."""
    service_account_name: Subdomain | None = None
    """Service account of coordinator and rollout servers. Absent: one made for the job."""
    image_pull_secrets: Annotated[tuple[ObjectName, ...], Field(max_length=8)] = ()
    """Secrets with which nodes pull the job's images."""
    output: OutputSpec
    """Where the results go."""

    @property
    def candidate_names(self) -> list[str]:
        """Names in the results, in order, with those that `withBase` adds."""
        found = []
        for candidate in self.candidates:
            found.append(candidate.name)
            if candidate.checkpoint is not None and candidate.checkpoint.with_base:
                found.append(candidate.name + BASE_SUFFIX)
        return found

    def asked(self, name: str) -> Candidate:
        """The spec's entry of a candidate. A candidate that `withBase` added has the entry of the tuned
        one."""
        by_name = {candidate.name: candidate for candidate in self.candidates}
        return by_name.get(name) or by_name[name.removesuffix(BASE_SUFFIX)]

    def takes_suites(self, name: str) -> bool:
        """Whether a candidate is measured on the suites: only rescored ones are not."""
        return self.asked(name).rescore is None

    @property
    def opens_gateway(self) -> bool:
        """Whether agents outside the coordinator's process ask it for their turns."""
        return bool(self.suites) or not self.agent.is_builtin

    @property
    def max_tokens(self) -> int:
        """Most tokens of one turn."""
        return self.evaluation.sampling.max_tokens or MAX_TOKENS

    @property
    def effective_baseline(self) -> str:
        """Name of the candidate that the others are compared with."""
        return self.baseline or (self.gate.must_beat if self.gate else None) or self.candidate_names[0]


class RLEvalJob(Model):
    """Several models measured on the same rows and seeds, and a gate that a promotion may wait for."""

    validations = NAME_RULES

    api_version: Literal["headway.dev/v1alpha1"] = "headway.dev/v1alpha1"
    """Version of the schema."""
    kind: Literal["RLEvalJob"] = "RLEvalJob"
    """Kind of the object."""
    metadata: Metadata
    """Standard object metadata."""
    spec: RLEvalJobSpec
    """What to measure, on what."""
    status: RLEvalJobStatus = Field(default_factory=RLEvalJobStatus)
    """Observed state, written by the platform."""
