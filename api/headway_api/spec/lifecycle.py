"""What surrounds a run: money, failures, tracking, and where its results go."""

from decimal import Decimal
from typing import Annotated, Final, Literal

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.field_types import Money, SecretRef, Uri, uri_scheme
from headway_api.rules import Rule

TokenLimit = Annotated[int, Field(ge=1, le=10**15)]
USD: Final = "usd"
"""Name of the limit in US dollars, in status."""
MANAGER_PATTERN: Final = r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$"


def _names_a_class(block: str) -> Rule:
    """Rule that a block `tokens` limits at least one class. `block` is the path of the block around it."""
    return Rule(
        "has(self.prefill) || has(self.cachedPrefill) || has(self.sample) || has(self.train) || "
        "has(self.discarded) || has(self.evaluation) || has(self.endpoint) || has(self.judge)",
        f"{block}.tokens names no class; write a limit for one of prefill, cachedPrefill, sample, "
        "train, discarded, evaluation, endpoint, judge, or remove it",
        lambda self: any(limit is not None for _, limit in self),
    )


def _has_a_limit(block: str) -> Rule:
    """Rule that the block at path `block` has a limit: `usd`, `tokens`, or both."""
    return Rule(
        "has(self.usd) || has(self.tokens)",
        f"{block} has no limit; write usd, tokens, or both",
        lambda self: self.usd is not None or self.tokens is not None,
    )


class TokenBudget(SpecModel):
    """Limits by class of token, as status.usage counts them. A class without a limit is unbounded."""

    validations = (_names_a_class("spec.budget"),)

    prefill: TokenLimit | None = None
    """Prompt tokens that the servers compute."""
    cached_prefill: TokenLimit | None = None
    """Prompt tokens that the servers find in their cache."""
    sample: TokenLimit | None = None
    """Sampled tokens."""
    train: TokenLimit | None = None
    """Tokens of trained rows."""
    discarded: TokenLimit | None = None
    """Tokens of episodes that are retried, or whose group is abandoned."""
    evaluation: TokenLimit | None = None
    """Tokens of preflight, validation, test and evaluation episodes."""
    endpoint: TokenLimit | None = None
    """Tokens at endpoints outside the job."""
    judge: TokenLimit | None = None
    """Tokens of questions to judges and of their answers."""


class BudgetSpec(SpecModel):
    """The most that a job may cost. An episode begins only if its highest possible cost fits into the rest of
    the budget."""

    validations = (_has_a_limit("spec.budget"),)

    usd: Money | None = None
    """The most that the job may cost, in US dollars, as a string. Classes without a price, which
    status.budget.unpriced names, cost nothing here."""
    tokens: TokenBudget | None = None
    """The most tokens that the job may use."""
    on_exhausted: Literal["Suspend", "Fail", "Drain"] = "Suspend"
    """What happens when no further episode fits and none runs. Suspend: the job stops its pods until the
    budget is raised. Fail: the job fails. Drain: the job trains the complete batches and succeeds; not
    allowed in an RLEvalJob."""


class SharedTokenBudget(TokenBudget):
    """Limits by class of token, as status.usage of the jobs counts them."""

    validations = (_names_a_class("spec"),)


class RLBudgetSpec(SpecModel):
    """The most that the jobs of a namespace may cost together. May be changed at any time."""

    validations = (_has_a_limit("spec"),)

    usd: Money | None = None
    """The most that the jobs may cost, in US dollars, as a string. Classes without a price cost nothing
    here."""
    tokens: SharedTokenBudget | None = None
    """The most tokens that the jobs may use."""
    managed_by: Annotated[str, Field(pattern=MANAGER_PATTERN, max_length=63)] | None = None
    """Controller that grants the budget to its jobs, as domain/name. Absent: this operator. The budget bounds
    jobs with the same managedBy."""


def limits_of(budget: BudgetSpec | RLBudgetSpec | None) -> dict[str, Decimal]:
    """The limits of a budget, by their names in status: `usd`, or `tokens.` and the class."""
    if budget is None:
        return {}
    found = {} if budget.usd is None else {USD: Decimal(budget.usd)}
    tokens = {} if budget.tokens is None else budget.tokens.as_object()
    return found | {f"tokens.{name}": Decimal(maximum) for name, maximum in tokens.items()}


class MlflowTracking(SpecModel):
    """An MLflow tracking server."""

    uri: Annotated[Uri, uri_scheme("spec.tracking.mlflow.uri", "http", "https")]
    """Address of the server."""
    experiment: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Experiment that the run belongs to. Absent: the job's namespace and name, NAMESPACE/NAME."""


class OtlpHeader(SpecModel):
    """A header of each request."""

    name: Annotated[str, Field(pattern=r"^[xX]-[A-Za-z0-9-]+$", max_length=64)]
    """The header's name, beginning with x-: x-mlflow-experiment-id for MLflow."""
    value: Annotated[str, Field(pattern=r"^[ -~]*$", max_length=256)]
    """The header's value, which everybody who can read the job can read. If a receiver needs a key, send to a
    collector that holds it."""


class OtlpTracking(SpecModel):
    """A receiver of OpenTelemetry traces."""

    endpoint: Annotated[Uri, uri_scheme("spec.tracking.otlp.endpoint", "http", "https")]
    """Address of the receiver, for OTLP over HTTP: traces are posted to ENDPOINT/v1/traces."""
    headers: Annotated[list[OtlpHeader], Field(max_length=8, default_factory=list)]
    """Headers of each request."""


class TrackingSpec(SpecModel):
    """Where metrics go besides Prometheus, and where traces go."""

    mlflow: MlflowTracking | None = None
    """Log every metric to MLflow."""
    otlp: OtlpTracking | None = None
    """Send a trace of each episode, and of each step, to OpenTelemetry."""


class RoleSecretRefs(SpecModel):
    """Secrets for single roles."""

    coordinator: SecretRef | None = None
    """For the coordinator, which writes trajectories, usage and reports, and deletes nothing."""
    learner: SecretRef | None = None
    """For the learner, which writes checkpoints and weights, and deletes old ones. Not in an RLEvalJob."""
    rollout: SecretRef | None = None
    """For the rollout servers, which read models and weights, and write nothing."""


class OutputSpec(SpecModel):
    """The object store: where results go, and how the job reaches every s3:// URI."""

    uri: Annotated[Uri, uri_scheme("spec.output.uri", "s3")]
    """Where results go: a folder below it, named after the job, gets checkpoints, trajectories and the
    ledger."""
    endpoint_url: Annotated[Uri, uri_scheme("spec.output.endpointUrl", "http", "https")] | None = None
    """Address of an S3-compatible store. Absent: AWS."""
    region: Annotated[str, Field(pattern=r"^[a-z0-9-]+$", max_length=63)] | None = None
    """Region of the store. Absent: the pod's environment decides."""
    secret_ref: SecretRef | None = None
    """Secret whose keys become variables of coordinator, learner and rollout servers: AWS_ACCESS_KEY_ID and
    AWS_SECRET_ACCESS_KEY, and HF_TOKEN for a hf:// model that needs one. Without the first two, or without a
    Secret, they use the service account's own identity (IRSA or EKS Pod Identity)."""
    role_secret_refs: RoleSecretRefs | None = None
    """Secrets that replace secretRef in the pods of one role, so that each role has only the rights that it
    needs (docs/security.md). Absent roles use secretRef."""

    def secret_of(self, role: str) -> SecretRef | None:
        """The Secret with a role's credentials for the store. None: the role uses the identity of its service
        account."""
        own = self.role_secret_refs and getattr(self.role_secret_refs, role, None)
        return own or self.secret_ref
