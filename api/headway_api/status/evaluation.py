"""The status of an RLEvalJob."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from headway_api.base import StatusModel
from headway_api.conditions import Condition
from headway_api.failures import Failures
from headway_api.grants import Grant
from headway_api.held import Accelerators
from headway_api.spec.types import Decimal, Money, Uri
from headway_api.status.common import Count, Generation, Role, State, Text, Tracking, Word, list_map
from headway_api.status.preflight import Preflight
from headway_api.status.usage import Budget, Estimate, Usage


class ResolvedCandidate(StatusModel):
    """What a candidate of the spec stands for. Chosen once, when the job is taken up, and kept."""

    name: Word
    """Name of the candidate in the results."""
    kind: Literal["Model", "Adapter", "Weights", "Endpoint", "Rescore"]
    """Model: a model as it comes. Adapter: a LoRA adapter on its base model. Weights: every weight of a
    trained model. Endpoint: a model served elsewhere. Rescore: stored episodes."""
    base: Uri | None = None
    """Model that the servers load. Absent for Endpoint and Rescore."""
    revision: Word | None = None
    """Revision of it."""
    dtype: Literal["bfloat16", "float32"] | None = None
    """Number format of its weights."""
    context_length: Count | None = None
    """Most tokens of one episode. Absent: the model's own limit."""
    lora_rank: Count | None = None
    """Rank of the adapter."""
    job: Word | None = None
    """The training job that made the weights."""
    step: Count | None = None
    """Step of that job that they are of."""
    uri: Uri | None = None
    """Folder they lie in."""
    server_set: Count | None = None
    """Set of rollout servers that samples for it."""
    lost_reason: Word | None = None
    """Why its servers were given up, in one word. Absent: they were not."""
    lost_message: Text | None = None
    """Why its servers were given up, in the API's own words."""


class Interval(StatusModel):
    """A figure with its 95 % confidence interval."""

    value: Decimal
    """The figure."""
    low: Decimal | None = None
    """Lower bound. Absent where there are too few rows to tell."""
    high: Decimal | None = None
    """Upper bound."""


class Difference(StatusModel):
    """The difference to the baseline candidate, pair by pair."""

    baseline: Word
    """The candidate compared with."""
    value: Decimal | None = None
    """Mean paired difference of the external score. Absent where there are too few pairs to tell."""
    low: Decimal | None = None
    """Lower bound of its 95 % confidence interval."""
    high: Decimal | None = None
    """Upper bound."""
    p: Decimal | None = None
    """p-value of the sign-flip permutation test, corrected for the number of candidates (Holm)."""


class SuiteResult(StatusModel):
    """What a candidate reached in a suite."""

    name: Word
    """The suite."""
    score: Word
    """External score and half the width of its interval: 0.83 ± 0.05."""


class CandidateResult(StatusModel):
    """What a candidate reached."""

    name: Word
    """The candidate."""
    state: Literal["Pending", "Running", "Complete", "Failed"] = "Pending"
    """Where it stands."""
    reason: Word | None = None
    """Why it failed, in one word."""
    message: Text | None = None
    """Why it failed: the field and the fix. Then what an endpoint refused or did not count, and what has no
    price."""
    rows: Count = 0
    """Rows of spec.data measured. The figures below but cost are of these, and of no suite."""
    tries: Count = 0
    """Tries that were scored."""
    infra_errors: Count = 0
    """Tries that a part of the platform failed for good. They are in no mean."""
    reward: Interval | None = None
    """Mean reward."""
    external_score: Interval | None = None
    """Mean external score."""
    success: Interval | None = None
    """Share of tries that succeeded by the external score."""
    difference: Difference | None = None
    """Against the baseline candidate. Absent for the baseline itself."""
    cost: Money | None = None
    """Cost of its tokens and sandboxes by the price book. Absent where part of it is not known; message says
    why."""
    score: Word | None = None
    """External score and half the width of its interval, for the printer column: 0.83 ± 0.05."""
    suites: Annotated[
        list[SuiteResult], Field(max_length=4, default_factory=list, json_schema_extra=list_map("name"))
    ]
    """What it reached in the suites."""


class GateResult(StatusModel):
    """How the gate was decided."""

    result: Literal["Pending", "Passed", "Refused", "TooFewRows", "Error"] = "Pending"
    """Whether it lets through. TooFewRows, Refused and Error do not. Error: it names what has no results."""
    message: Text = ""
    """The numbers compared."""


class EvalProgress(StatusModel):
    """How far an evaluation has come."""

    groups: Count = 0
    """Rows done, over all candidates; a suite's sample is a row too."""
    of_groups: Count | None = None
    """Rows to do, over all candidates that can be measured."""
    server_sets: Annotated[list[Count], Field(max_length=8, default_factory=list)]
    """Sets of rollout servers that are needed now; the others are released."""
    updated_time: datetime | None = None
    """When anything last went forward."""
    stalled: Text | None = None
    """Why nothing has gone forward for a while, naming the part it waits for. Absent while it does."""


class Headline(StatusModel):
    """The result in a line, for the printer columns."""

    candidate: Word | None = None
    """The gate's candidate; without a gate the one with the best external score."""
    score: Word | None = None
    """Its external score and half the width of the interval."""


class EvalArtifacts(StatusModel):
    """Where the results lie."""

    uri: Uri | None = None
    """The job's folder."""
    trajectories: Uri | None = None
    """Every episode, token by token."""
    ledger: Uri | None = None
    """Every usage event."""
    results: Uri | None = None
    """The table of candidate x row x try."""
    report: Uri | None = None
    """The report as JSON; report.md beside it is for people."""
    page: Uri | None = None
    """The same as one HTML file, with episodes; absent where it could not be written."""
    logs: Uri | None = None
    """Folder of the Inspect logs, one of each candidate."""


class RLEvalJobStatus(StatusModel):
    """What has become of an evaluation job."""

    observed_generation: Generation | None = None
    """metadata.generation of the spec this status is true of; -1 until the operator has seen the job."""
    state: State | None = None
    """The conditions in one word, for the printer column."""
    reason: Word | None = None
    """Reason of the condition that state comes from."""
    conditions: Annotated[
        list[Condition], Field(max_length=32, default_factory=list, json_schema_extra=list_map("type"))
    ]
    """What is so of the job."""
    start_time: datetime | None = None
    """When the operator first took the job up."""
    completion_time: datetime | None = None
    """When the job ended, well or badly."""
    suspended_seconds: Count | None = None
    """Seconds it was suspended, over all past suspensions; deadlines leave them out."""
    candidates: Annotated[
        list[ResolvedCandidate],
        Field(max_length=16, default_factory=list, json_schema_extra=list_map("name")),
    ]
    """What each candidate of the spec stands for. It is not chosen again."""
    progress: EvalProgress | None = None
    """How far the evaluation has come."""
    results: Annotated[
        list[CandidateResult], Field(max_length=16, default_factory=list, json_schema_extra=list_map("name"))
    ]
    """What each candidate reached."""
    gate: GateResult | None = None
    """How the gate was decided."""
    headline: Headline | None = None
    """The result in a line."""
    usage: Usage | None = None
    """What has been used, and its cost."""
    estimate: Estimate | None = None
    """What the whole evaluation will use and cost."""
    budget: Budget | None = None
    """How far the job's budget is used up. Absent: it has none."""
    grant: Grant | None = None
    """What the RLBudget of the namespace lets the job use. Absent: there is none."""
    preflight: Preflight | None = None
    """The checks before the first episode."""
    roles: Annotated[
        list[Role], Field(max_length=8, default_factory=list, json_schema_extra=list_map("name"))
    ]
    """The job's pods, by role."""
    failures: Failures | None = None
    """What spec.failurePolicy.rules have decided. Absent: nothing yet."""
    accelerators: Accelerators | None = None
    """Accelerators that its pods hold and have held. Absent: none has yet."""
    rollout_replicas: Count | None = None
    """Rollout servers there are, for the scale subresource."""
    rollout_selector: Text | None = None
    """Label selector of the rollout servers, for the scale subresource."""
    artifacts: EvalArtifacts | None = None
    """Where the results lie."""
    tracking: Tracking | None = None
    """Where metrics are tracked."""
