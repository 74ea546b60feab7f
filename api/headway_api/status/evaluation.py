"""The status of an RLEvalJob."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from headway_api.accelerators import Accelerators
from headway_api.base import StatusModel
from headway_api.conditions import Condition
from headway_api.failures import Failures
from headway_api.field_types import Count, Decimal, Money, Uri, Word
from headway_api.grants import Grant
from headway_api.status.common import Generation, Role, State, Text, Tracking, list_map
from headway_api.status.preflight import Preflight
from headway_api.status.usage import Budget, Estimate, Usage


class ResolvedCandidate(StatusModel):
    """The model that a candidate of the spec refers to. The operator chooses it once, when it accepts the
    job."""

    name: Word
    """Name of the candidate in the results."""
    kind: Literal["Model", "Adapter", "Weights", "Endpoint", "Rescore"]
    """Model: an unchanged model. Adapter: a LoRA adapter on its base model. Weights: every weight of a
    trained model. Endpoint: a model served elsewhere. Rescore: stored episodes."""
    base: Uri | None = None
    """Model that the servers load. Absent for Endpoint and Rescore."""
    trained_from: Uri | None = None
    """spec.model.base of the training job, for Weights. Its prices apply to the candidate's tokens."""
    revision: Word | None = None
    """Revision of the model in base."""
    dtype: Literal["bfloat16", "float32"] | None = None
    """Number format of the weights."""
    context_length: Count | None = None
    """Maximum tokens of one episode. Absent: the model's own limit."""
    lora_rank: Count | None = None
    """Rank of the adapter."""
    job: Word | None = None
    """The training job that made the weights."""
    step: Count | None = None
    """Step of the training job that made the weights."""
    uri: Uri | None = None
    """Folder of the weights."""
    server_set: Count | None = None
    """Number of the set of rollout servers that samples for the candidate."""
    lost_reason: Word | None = None
    """Why the job stopped waiting for the candidate's servers, in one word. Absent: it has not stopped
    waiting."""
    lost_message: Text | None = None
    """Why the job stopped waiting for the candidate's servers, in the Kubernetes API's own words."""

    @property
    def base_model(self) -> str | None:
        """The base model that the weights were trained from, otherwise `base`. None: the candidate has no
        servers, because it is an endpoint or a stored run."""
        return self.trained_from or self.base


class Interval(StatusModel):
    """A value with its 95 % confidence interval."""

    value: Decimal
    """The value itself."""
    low: Decimal | None = None
    """Lower bound. Absent if there are too few rows."""
    high: Decimal | None = None
    """Upper bound."""


class Difference(StatusModel):
    """How far the candidate is above the baseline candidate, paired by row and try."""

    baseline: Word
    """Name of the baseline candidate."""
    value: Decimal | None = None
    """Mean paired difference of the external score. Absent if there are too few pairs."""
    low: Decimal | None = None
    """Lower bound of the difference's 95 % confidence interval."""
    high: Decimal | None = None
    """Upper bound."""
    p: Decimal | None = None
    """p-value of the sign-flip permutation test, corrected for the number of candidates (Holm)."""


class SuiteResult(StatusModel):
    """Result of a candidate in a suite."""

    name: Word
    """The suite."""
    score: Word
    """External score, and half the width of its 95 % confidence interval: 0.83 ± 0.05."""


class CandidateResult(StatusModel):
    """Result of a candidate."""

    name: Word
    """The candidate."""
    state: Literal["Pending", "Running", "Complete", "Failed"] = "Pending"
    """Whether the candidate waits, runs, is complete, or has failed."""
    reason: Word | None = None
    """Why the candidate failed, in one word."""
    message: Text | None = None
    """Up to three notes. They say why the candidate failed, with the field and the fix. They say what an
    endpoint refused or did not count, and what has no price. For a stored run that is scored again, they say
    how many tool answers differ from the recorded ones."""
    rows: Count = 0
    """Rows of spec.data that were measured. The measures below, except cost, cover only these rows, not the
    suites."""
    tries: Count = 0
    """Tries that were scored."""
    infra_errors: Count = 0
    """Tries that ended as InfraError after all retries. Means leave these tries out."""
    reward: Interval | None = None
    """Mean reward."""
    external_score: Interval | None = None
    """Mean external score."""
    success: Interval | None = None
    """Share of tries that succeeded by the external score."""
    difference: Difference | None = None
    """Difference to the baseline candidate. Absent for the baseline itself."""
    cost: Money | None = None
    """Cost of the candidate's tokens and sandboxes by the price book. Absent if part of the cost is unknown;
    message says why."""
    score: Word | None = None
    """External score, and half the width of its 95 % confidence interval, for the printer column: 0.83 ±
    0.05."""
    suites: Annotated[
        list[SuiteResult], Field(max_length=4, default_factory=list, json_schema_extra=list_map("name"))
    ]
    """The candidate's results in the suites."""


class GateResult(StatusModel):
    """The result of the gate, and why."""

    result: Literal["Pending", "Passed", "Refused", "TooFewRows", "Error", "NotJudged"] = "Pending"
    """Result of the gate. Passed: the candidate meets the gate. Refused: it does not. TooFewRows: the value
    is good enough, but the rows are too few to exclude chance. Error: the gate names something without
    results. NotJudged: the job failed before all rows were measured."""
    message: Text = ""
    """The numbers that the gate compared."""


class EvalProgress(StatusModel):
    """How far an evaluation has come."""

    groups: Count = 0
    """Rows done, over all candidates. A sample of a suite is a row too."""
    of_groups: Count | None = None
    """Rows to do, over all candidates that can be measured."""
    server_sets: Annotated[list[Count], Field(max_length=8, default_factory=list)]
    """Sets of rollout servers that are needed now. The operator deletes the servers of other sets."""
    updated_time: datetime | None = None
    """Time of the last progress."""
    stalled: Text | None = None
    """Why nothing has progressed for a while, with the part that the job waits for. Absent while the job
    progresses."""


class Headline(StatusModel):
    """The main result in one line, for the columns of `kubectl get`."""

    candidate: Word | None = None
    """The gate's candidate. Without a gate, the candidate with the best external score."""
    score: Word | None = None
    """External score of this candidate, and half the width of the score's 95 % confidence interval."""


class EvalArtifacts(StatusModel):
    """Addresses of the results."""

    uri: Uri | None = None
    """The job's folder."""
    trajectories: Uri | None = None
    """Folder of all episodes, token by token."""
    ledger: Uri | None = None
    """Folder of all usage events."""
    results: Uri | None = None
    """Table with one row for each candidate, row and try."""
    report: Uri | None = None
    """The report as JSON; report.md beside it is for people."""
    page: Uri | None = None
    """The report as one HTML file, with episodes. Absent if it could not be written."""
    logs: Uri | None = None
    """Folder of the Inspect logs, one for each candidate."""


class RLEvalJobStatus(StatusModel):
    """Observed state of an evaluation job."""

    observed_generation: Generation | None = None
    """metadata.generation of the spec that this status describes; -1 until the operator has seen the job."""
    state: State | None = None
    """The conditions in one word, for the printer column."""
    reason: Word | None = None
    """Reason of the condition that decides state."""
    conditions: Annotated[
        list[Condition], Field(max_length=32, default_factory=list, json_schema_extra=list_map("type"))
    ]
    """Conditions of the job."""
    start_time: datetime | None = None
    """When the operator first acted on the job."""
    completion_time: datetime | None = None
    """When the job succeeded or failed."""
    suspended_seconds: Count | None = None
    """Seconds that the job was suspended, over all past suspensions. Deadlines do not count them."""
    candidates: Annotated[
        list[ResolvedCandidate],
        Field(max_length=16, default_factory=list, json_schema_extra=list_map("name")),
    ]
    """The model that each candidate of the spec refers to, chosen once."""
    progress: EvalProgress | None = None
    """How far the evaluation has come."""
    results: Annotated[
        list[CandidateResult], Field(max_length=16, default_factory=list, json_schema_extra=list_map("name"))
    ]
    """Result of each candidate."""
    gate: GateResult | None = None
    """How the gate was decided."""
    headline: Headline | None = None
    """The main result in one line."""
    usage: Usage | None = None
    """What the job has used, and its cost."""
    estimate: Estimate | None = None
    """What the whole evaluation will use and cost."""
    budget: Budget | None = None
    """How much of the job's budget is used. Absent: the job has none."""
    grant: Grant | None = None
    """What the RLBudget of the namespace lets the job use. Absent: the namespace has none."""
    preflight: Preflight | None = None
    """The checks before the first episode."""
    roles: Annotated[
        list[Role], Field(max_length=8, default_factory=list, json_schema_extra=list_map("name"))
    ]
    """The job's pods, by role."""
    failures: Failures | None = None
    """What spec.failurePolicy.rules have decided. Absent: nothing yet."""
    accelerators: Accelerators | None = None
    """Accelerators that the job's pods hold and have held. Absent: no pod has held one yet."""
    rollout_replicas: Count | None = None
    """Rollout servers that exist, for the scale subresource."""
    rollout_selector: Text | None = None
    """Label selector of the rollout servers, for the scale subresource."""
    artifacts: EvalArtifacts | None = None
    """Addresses of the results."""
    tracking: Tracking | None = None
    """Where metrics are tracked."""
