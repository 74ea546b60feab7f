"""What is billed."""

from __future__ import annotations

from enum import StrEnum

from headway_api.record import Record


class UsageClass(StrEnum):
    """What a token (or second) is billed as."""

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
    """A line of the ledger. Its id is a pure function of what it counts: counting twice is impossible."""

    id: str
    """`<episode id>/<turn>/<class>`, `<group id>/step-<n>/train` or `accelerators-<n>/<role>/<product>`; of
    one withdrawn, `<id>/withdrawn`."""
    usage_class: UsageClass
    quantity: float
    """Negative where it withdraws another."""
    at: float
    """Unix time of the thing counted, which decides the price that applies."""
    role: str | None = None
    """Of accelerator seconds: the role whose pods held them."""
    product: str | None = None
    """Of accelerator seconds: what they are seconds of."""
    model: str | None = None
    """Of tokens: the model that they are priced as, named as in `endpoint.model` or `model.base`. Absent: it
    is the job's own, or the event is older than this field."""
