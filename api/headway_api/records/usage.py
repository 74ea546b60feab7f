"""Usage that is billed."""

from __future__ import annotations

from enum import StrEnum

from headway_api.record import Record


class UsageClass(StrEnum):
    """The class that a token (or second) is billed as."""

    PREFILL = "prefill"
    CACHED_PREFILL = "cachedPrefill"
    SAMPLE = "sample"
    TRAIN = "train"
    DISCARDED = "discarded"
    EVALUATION_PREFILL = "evaluationPrefill"
    EVALUATION_CACHED_PREFILL = "evaluationCachedPrefill"
    EVALUATION_SAMPLE = "evaluationSample"
    ENDPOINT_PROMPT = "endpointPrompt"
    """Tokens at an endpoint outside the job, as the endpoint counts them."""
    ENDPOINT_SAMPLE = "endpointSample"
    JUDGE_PROMPT = "judgePrompt"
    """Tokens of questions to judges, as their endpoints count them."""
    JUDGE_SAMPLE = "judgeSample"
    SANDBOX_SECONDS = "sandboxSeconds"
    ACCELERATOR_SECONDS = "acceleratorSeconds"


class UsageEvent(Record):
    """A line of the ledger. Its id is a pure function of what it counts, so nothing is counted twice."""

    id: str
    """`<episode id>/<turn>/<class>`, `<group id>/step-<n>/train` or `accelerators-<n>/<role>/<product>`; for
    a withdrawal, `<id>/withdrawn`."""
    usage_class: UsageClass
    quantity: float
    """Negative if it withdraws another event."""
    at: float
    """Unix time of the counted usage, which decides the price."""
    role: str | None = None
    """For accelerator seconds: the role whose pods held them."""
    product: str | None = None
    """For accelerator seconds: the product."""
    model: str | None = None
    """For tokens: the model whose prices apply, named as in `endpoint.model` or `model.base`. Absent: it is
    the job's own model, or the event is older than this field."""
