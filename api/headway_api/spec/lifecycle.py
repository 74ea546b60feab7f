"""What surrounds a run: money, failures, tracking, and where its results go."""

from typing import Annotated, Literal

from pydantic import Field

from headway_api.base import SpecModel
from headway_api.rules import Rule
from headway_api.spec.types import Money, SecretRef, Uri, uri_scheme

TokenLimit = Annotated[int, Field(ge=1, le=10**15)]
Reason = Annotated[str, Field(min_length=1, max_length=128)]


class TokenBudget(SpecModel):
    """Limits by token class; a class without a limit is not limited."""

    prefill: TokenLimit | None = None
    """Prompt tokens, those the servers had cached left out."""
    sample: TokenLimit | None = None
    """Sampled tokens."""
    train: TokenLimit | None = None
    """Trained tokens."""


class BudgetSpec(SpecModel):
    """The most a job may cost."""

    validations = (
        Rule(
            "has(self.usd) != has(self.tokens)",
            "spec.budget takes exactly one of usd and tokens",
            lambda self: (self.usd is None) != (self.tokens is None),
        ),
    )

    usd: Money | None = None
    """The most it may cost, in US dollars, as a string."""
    tokens: TokenBudget | None = None
    """The most tokens it may use."""
    on_exhausted: Literal["Suspend", "Fail"] = "Suspend"
    """What happens when no further episode fits."""
    price_book: Annotated[str, Field(min_length=1, max_length=63)] = "default"
    """Price book that turns tokens into dollars."""


class MlflowTracking(SpecModel):
    """An MLflow tracking server."""

    uri: Annotated[Uri, uri_scheme("spec.tracking.mlflow.uri", "http", "https")]
    """Address of the server."""
    experiment: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Experiment the run is filed under. Absent: the job's namespace and name, NAMESPACE/NAME."""


class TrackingSpec(SpecModel):
    """Where metrics go besides Prometheus."""

    mlflow: MlflowTracking | None = None
    """Log every metric to MLflow."""


class FailureRule(SpecModel):
    """What a failure leads to; the first rule that matches decides."""

    exit_codes: Annotated[tuple[Annotated[int, Field(ge=1, le=255)], ...], Field(max_length=16)] = ()
    """Exit codes that match. Absent: any."""
    pod_conditions: Annotated[tuple[Reason, ...], Field(max_length=16)] = ()
    """Types of true pod conditions that match, such as DisruptionTarget. Absent: any."""
    action: Literal["RestartRole", "RestartAll", "Fail", "Replace"]
    """What is done."""


class RoleSecretRefs(SpecModel):
    """Secrets of single roles."""

    coordinator: SecretRef | None = None
    """Of the coordinator, which writes trajectories, usage and reports, and deletes nothing."""
    learner: SecretRef | None = None
    """Of the learner, which writes checkpoints and weights, and deletes old ones. Not in an RLEvalJob."""
    rollout: SecretRef | None = None
    """Of the rollout servers, which read models and weights, and write nothing."""


class OutputSpec(SpecModel):
    """The object store: where results go, and how every s3:// URI of the job is reached."""

    uri: Annotated[Uri, uri_scheme("spec.output.uri", "s3")]
    """Where results go: checkpoints, trajectories and the ledger lie in a folder of the job's name
    under it."""
    endpoint_url: Annotated[Uri, uri_scheme("spec.output.endpointUrl", "http", "https")] | None = None
    """Address of an S3-compatible store. Absent: AWS."""
    region: Annotated[str, Field(pattern=r"^[a-z0-9-]+$", max_length=63)] | None = None
    """Region of the store. Absent: as the pod's environment says."""
    secret_ref: SecretRef | None = None
    """Secret whose keys become variables of coordinator, learner and rollout servers: AWS_ACCESS_KEY_ID and
    AWS_SECRET_ACCESS_KEY, and HF_TOKEN for a hf:// model that needs one. Without the first two, or without
    a Secret: the service account's own identity (IRSA or EKS Pod Identity)."""
    role_secret_refs: RoleSecretRefs | None = None
    """Secrets that stand for secretRef in the pods of one role, so that each role may do no more than it
    needs (docs/security.md). A role that is absent here has secretRef."""

    def secret_of(self, role: str) -> SecretRef | None:
        """The Secret with the store's credentials of a role; None: its service account's own identity."""
        own = self.role_secret_refs and getattr(self.role_secret_refs, role, None)
        return own or self.secret_ref
