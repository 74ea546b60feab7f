"""The typed records that travel between the processes of a job.

    coordinator -> vLLM      token ids in, token ids out (vLLM's own API)
    coordinator -> sandbox   `sandbox_api` documents
    learner     -> coordinator   GET /v1/batch, POST /v1/steps        (`Batch`, `StepReport`)
    coordinator -> weight agent  POST, GET, DELETE /v1/weights?slot=  (`WeightsManifest`, `WeightsState`)
    coordinator -> artifact store   `GroupRecord` (the spool), usage segments
    learner     -> artifact store   `StepReport` beside its checkpoint

Records are immutable and tolerate no unknown field: two processes of one job always run one version. NaN and
infinity are refused when a record is made: JSON has no such numbers, and what was written could not be read.
"""

from __future__ import annotations

from enum import StrEnum
from functools import total_ordering
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from headway_api import bounds
from headway_api.bounds import is_below
from headway_api.in_force import Directive, DirectiveRefusal, InForce
from headway_api.record import Record as Record


@total_ordering
class PolicyVersion(Record):
    """Which weights: the optimizer step they came from, in the learner's `incarnation`.

    A learner that rolls back starts a new incarnation, so that step 12 before a rollback and step 12
    after it are two versions. Ordered by incarnation, then step; version 0.0 is the untrained model.
    """

    incarnation: int = Field(ge=0)
    step: int = Field(ge=0)

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.step}"

    def __lt__(self, other: Self) -> bool:
        return (self.incarnation, self.step) < (other.incarnation, other.step)

    @classmethod
    def parse(cls, text: str) -> PolicyVersion:
        """Inverse of `str`."""
        incarnation, step = text.split(".")
        return cls(incarnation=int(incarnation), step=int(step))


class Outcome(StrEnum):
    """How an episode ended. All but the last carry a reward."""

    COMPLETED = "Completed"
    TRUNCATED = "Truncated"
    """It ran into maxTurns, maxTokens or the context length; still scored."""
    AGENT_ERROR = "AgentError"
    """The agent itself failed; scored as the environment scores an unfinished episode."""
    INFRA_ERROR = "InfraError"
    """A sandbox or a server failed: retried, never scored, left out of the baseline and of the bill."""


class Purpose(StrEnum):
    """Why an episode was run; evaluation episodes are billed in a class of their own and never trained on."""

    TRAIN = "train"
    VALIDATION = "validation"
    EVALUATION = "evaluation"
    """Of an RLEvalJob."""
    PREFLIGHT = "preflight"
    """Of the untrained model, before a learner exists: what the checks of the preflight judge."""


class VersionSpan(Record):
    """Tokens `[start, end)` of a row were sampled by `version`."""

    start: int = Field(ge=0)
    end: int = Field(gt=0)
    version: PolicyVersion


class TurnSpan(Record):
    """Tokens `[start, end)` of a row were sampled in the episode's turn `turn`."""

    start: int = Field(ge=0)
    end: int = Field(gt=0)
    turn: int = Field(ge=0)


class TrainingSequence(Record):
    """One training sequence. An episode that only ever appended has exactly one."""

    tokens: list[int]
    mask: list[int]
    """1 where the model sampled the token (it is trained), 0 where it was given (prompt, tool result)."""
    logprobs: list[float]
    """Log-probability the sampler gave each token, at the sampling temperature; 0.0 where mask is 0."""
    versions: list[VersionSpan]
    """Cover exactly the positions where mask is 1."""
    turns: list[TurnSpan] = Field(default_factory=list)
    """Cover the same positions, in order. Empty: all of them are of turn 0."""

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        if not len(self.tokens) == len(self.mask) == len(self.logprobs):
            raise ValueError("tokens, mask and logprobs must have one entry a token")
        if self.turns:
            told = [place for span in self.turns for place in range(span.start, span.end)]
            if told != [place for place, trained in enumerate(self.mask) if trained]:
                raise ValueError("turns must cover exactly the positions where mask is 1")
        return self

    @property
    def action_tokens(self) -> int:
        """Number of tokens the model sampled."""
        return sum(self.mask)


MalformedKind = Literal["unclosed", "no_name", "not_json", "arguments", "structure", "other"]
"""What is wrong with a call that cannot be read: it has no end; it names no tool; it is not the JSON that it
should be; its arguments are no object, or no values; its parts are not where they belong; anything else."""
MALFORMED_KINDS: tuple[MalformedKind, ...] = get_args(MalformedKind)


class Turn(Record):
    """One model call: what it cost and how it ended. The tokens themselves are in the episode's rows."""

    index: int = Field(ge=0)
    prompt_tokens: int = Field(ge=0)
    """All token ids sent, `cached_tokens` included."""
    cached_tokens: int = Field(ge=0)
    """The part of the prompt the engine reported as found in its prefix cache."""
    sampled_tokens: int = Field(ge=0)
    finish_reason: str
    malformed_tool_calls: int = Field(default=0, ge=0)
    malformed_kinds: dict[MalformedKind, int] = Field(default_factory=dict)
    """How many of them are of which kind."""
    policy_version: PolicyVersion
    delivered: bool = True
    """Whether it reached the agent. Tokens of one that did not are in no row, since they had no part in the
    reward, and are billed as discarded."""
    guided: bool = False
    """Whether a JSON schema held it: the sampler was shown only the tokens that keep to it. It is billed, and
    context in the rows: nobody recorded which tokens were hidden, so no ratio of it would be right."""
    counted: bool = True
    """Whether an endpoint said what it cost. Where it did not, the tokens are 0 here and not known."""


class Judgement(Record):
    """A question that an episode put to a judge, and what its answer cost."""

    judge: str
    """Name of one of spec.judges."""
    question: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Digest of what was asked, and of whom: the answer lies in the store under it where it is kept."""
    cached: bool = False
    """The answer was there already, and cost nothing."""
    prompt_tokens: int = Field(default=0, ge=0)
    """As the judge's endpoint counts them, of every answer that it gave, those that could not be used too."""
    sampled_tokens: int = Field(default=0, ge=0)
    counted: bool = True
    """Whether the endpoint said what it cost. Where it did not, the tokens are 0 here and not known."""
    model: str | None = None
    """Whose prices hold: the judge's `endpoint.model` or `model.base`. Absent: it cost nothing, or it was
    asked before this was recorded."""


ForkReason = Literal[
    "tools",
    "system",
    "dropped",
    "inserted",
    "role",
    "calls",
    "arguments",
    "call_id",
    "whitespace",
    "content",
    "again",
    "cut_off",
    "thought",
    "template",
]
"""How a history left what was sampled.

By the agent: other tools; another system prompt; messages left out or put in; another role; other tool
calls; other arguments of one; another id of the call that a tool answers; other blanks; other words; the
same history asked again. By the model's chat template: a turn that was cut off cannot be gone on from;
thoughts are dropped; the history is written otherwise.
"""
FORK_REASONS: tuple[ForkReason, ...] = get_args(ForkReason)


class Drift(Record):
    """Turns of an episode whose history left what was sampled for one reason, and where the first did."""

    reason: ForkReason
    count: int = Field(ge=1)
    turn: int = Field(ge=0)
    """Which of the episode's turns the first was, in the order in which they were asked for."""
    message: int | None = Field(default=None, ge=0)
    """The first message of that turn's request that differs, from 0. None: no message does."""
    role: str | None = Field(default=None, max_length=32)
    """Its role in the request."""


SpanKind = Literal["sandbox", "reset", "turn", "tool", "judgement"]
"""What an episode waits for: a sandbox, the environment's reset, an answer of the model, a tool, its
judgement. Between them the agent's own code runs, and the platform's."""
MOST_SPANS: Final = 4096
"""Of one episode; later ones are not recorded."""


class EpisodeSpan(Record):
    """Something that an episode waited for, and when."""

    kind: SpanKind
    name: str = Field(default="", max_length=128)
    """Of a tool its name, of a turn its number as it was asked for."""
    began: float = Field(ge=0)
    """Seconds after the episode's start, by a clock that is never set."""
    ended: float = Field(ge=0)


class EpisodeRecord(Record):
    """One episode, sealed. `outcome` says whether `reward` means anything."""

    episode_id: str
    """`<group id>-<index>-<attempt>`: a retry is another episode."""
    group_id: str
    index: int = Field(ge=0)
    attempt: int = Field(ge=0)
    outcome: Outcome
    error: str | None = None
    """For a person: what failed, in the failing part's own words."""
    cause: str | None = Field(default=None, max_length=64)
    """Reason, where what failed is of the job's own parts: `ResetFailed`, `RewardFailed`, `JudgeSlow`."""
    timed_out: bool = False
    """Whether it had not ended within rollout.timeoutSeconds: lost for it, or Truncated and judged."""
    token_limited: bool = False
    """Whether it is Truncated since it had sampled the tokens of rollout.episodeTokenLimit."""
    reward: float | None = None
    """What the model is trained on; None exactly when outcome is InfraError."""
    turn_rewards: list[float] | None = None
    """What each turn earned, by the turns' index, 0 for one that was not delivered; they add up to `reward`.
    None: all of it came at the end."""
    score: float | None = None
    """The strict external score, separate from the reward; success is score >= successThreshold."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """The reward's own parts (completion, field accuracy...)."""
    judgements: list[Judgement] = Field(default_factory=list)
    """What its reward and score asked of judges, in the order of the answers; of a lost episode too."""
    messages: list[dict[str, Any]]
    """The conversation as a person reads it (OpenAI chat form)."""
    turns: list[Turn]
    rows: list[TrainingSequence]
    forks: int = Field(default=0, ge=0)
    """Turns whose history was not one that had been sampled: each makes a row more."""
    drifts: list[Drift] = Field(default_factory=list, max_length=len(FORK_REASONS))
    """Why they were not, one for each reason. Their counts add up to `forks`; records of before have none."""
    ignored: dict[str, int] = Field(default_factory=dict, max_length=256)
    """Fields of the agent's requests that were not applied, and in how many: `seed`, and with
    `spec.agent.lenient` all that would else be refused."""
    sandbox_seconds: float = Field(ge=0)
    started_at: float
    finished_at: float
    spans: list[EpisodeSpan] = Field(default_factory=list, max_length=MOST_SPANS)
    """What it waited for, in the order in which the waits ended. Records of before have none."""


SampledBy = Literal["servers", "endpoint", "nobody"]
"""Who sampled a group's tokens; `nobody`: stored episodes that were scored again."""
AbandonReason = Literal["TooFewScored", "NotJudged", "NoStepLeft", "TooOld", "RolledBack", "BudgetExhausted"]
"""Why a training group is not trained: too many of its episodes failed for good; its environment rewards
whole groups, and could not judge this one; no step can take it; its tokens are older than may be trained by
now, since a predecessor of the coordinator wrote it, or a remedy has lowered the bound or the batch; a remedy
went back behind the policy that sampled it; or what it may cost does not fit the job's budget."""


class Abandoned(Record):
    """A training group left the order: its slot returned, and all its tokens are discarded."""

    reason: AbandonReason
    message: str
    """For a person; of failed episodes, what the last one said."""


class GroupRecord(Record):
    """`groupSize` episodes on one prompt: the unit of work, of retry, of delivery and of acknowledgement."""

    group_id: str
    """A function of (purpose, position in the seeded data order), so a replay has the same id."""
    purpose: Purpose
    row: int = Field(ge=0)
    """Index of the prompt in its dataset; samples of suites come after its rows."""
    suite: str | None = None
    """Evaluation: the suite whose sample it is; None: a row of the job's own dataset."""
    epoch: int = Field(ge=0)
    step: int = Field(ge=0)
    """Training: learner step when the group started. Validation: the step that was evaluated.
    Evaluation: 0."""
    candidate: str | None = None
    """Evaluation: name of the candidate."""
    sampled_by: SampledBy = "servers"
    """The job's own servers, an endpoint elsewhere, or nobody: stored episodes that were scored again."""
    model: str | None = None
    """Whose prices hold: a candidate's `endpoint.model`, or its base model. Absent: it is the job's own,
    nobody sampled, or the group was sampled before this was recorded."""
    episodes: list[EpisodeRecord]
    """The final attempt at each index; an index that stayed InfraError is present with that outcome. Only an
    abandoned group may lack some: it had not begun them."""
    discarded: list[EpisodeRecord] = Field(default_factory=list)
    """Earlier attempts that were retried: counted as discarded, never scored or trained."""
    judgements: list[Judgement] = Field(default_factory=list)
    """What the reward of the whole group asked of judges."""
    abandoned: Abandoned | None = None
    """Why nothing of it is trained, where that is so."""
    dropped: dict[str, str] = Field(default_factory=dict)
    """Parameters that an endpoint had refused by then -> the one sent instead, or an empty string."""

    @property
    def scored(self) -> list[EpisodeRecord]:
        """Episodes that take part in the group's baseline."""
        return [e for e in self.episodes if e.outcome is not Outcome.INFRA_ERROR]

    @property
    def unanswered(self) -> bool:
        """Whether it is a group of held-out rows of which nothing was scored. Such a group is kept, but does
        not stand for its id: a later coordinator may run it again."""
        return self.purpose is not Purpose.TRAIN and not self.scored

    @property
    def key(self) -> str:
        """Name it is kept under: its id; of an unanswered group `<id>-<last attempt>`, which no other run of
        it shares."""
        if not self.unanswered:
            return self.group_id
        return f"{self.group_id}-{max(episode.attempt for episode in self.episodes)}"


class Batch(Record):
    """What one step is made of: groups to train on, or a directive and no groups."""

    step: int = Field(ge=1)
    """The step this batch produces: trained on version step-1, yields version step."""
    epoch: int = Field(ge=0)
    groups: list[GroupRecord]
    in_force: InForce = InForce()
    """What holds from this step on. A learner that has something else, since it resumed from an older
    checkpoint, is brought to it before it trains."""
    directive: Directive | None = None
    """With it nothing is trained: the learner does what it says, and the step has no groups."""
    validated: list[int] = Field(default_factory=list)
    """Validated steps, the best first: whose checkpoints are worth keeping."""
    validating: list[int] = Field(default_factory=list)
    """Steps whose validations run or wait: their checkpoints are kept until it is known how good they are."""
    idle: list[int] = Field(default_factory=list)
    """Earlier steps without groups, by which no token ages."""

    @model_validator(mode="after")
    def _trains_or_changes(self) -> Self:
        if self.directive is not None and self.groups:
            raise ValueError("a batch with a directive has no groups: nothing is trained in its step")
        return self


class Finished(Record):
    """Answer to the learner when there is nothing more to train."""

    reason: Literal["MaxSteps", "MaxEpochs", "BudgetExhausted", "Cancelled"]
    validated: list[int] = Field(default_factory=list)
    """As `Batch.validated`."""


def _name_below(name: str) -> str:
    if not is_below(name):
        raise ValueError("is no name of a file below a folder: write it without .., and without a / in front")
    return name


class FileDigest(Record):
    """One file of a weights or checkpoint directory."""

    name: Annotated[str, AfterValidator(_name_below)]
    """Below the directory: `a/b`, and never `../a` or `/a`."""
    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Canary(Record):
    """A fixed sequence and the log-probabilities the learner computed with the published weights.

    `logprobs[i]` is that of `tokens[i + 1]` given `tokens[: i + 1]`: one shorter than `tokens`.
    A server whose own values differ by more than `tolerance` (mean absolute) holds other weights.
    """

    tokens: list[int] = Field(fail_fast=True)
    logprobs: list[float] = Field(fail_fast=True)
    tolerance: float = Field(gt=0)


class TensorDigests(Record):
    """SHA-256 of the bytes of each tensor of a version; a file beside its weights."""

    tensors: dict[str, str]


class WeightsLink(Record):
    """One version that a delta is built on."""

    version: PolicyVersion
    uri: str
    files: list[FileDigest] = Field(fail_fast=True)


class DirectSource(Record):
    """Where the learner hands weights out of its memory, as `weights_direct` describes it."""

    host: str
    port: int
    header: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the header, which has a digest of each tensor."""


class WeightsManifest(Record):
    """Published weights: where they are and how a server proves that it took them."""

    version: PolicyVersion
    kind: Literal["lora", "full", "delta", "direct", "base"]
    uri: str
    """Folder in the artifact store: Hugging Face layout (adapter_model.safetensors or model.safetensors), or
    a delta as `weights_format` describes it; of kind direct nothing lies there. Of kind base: the model that
    the server loaded when it started."""
    files: list[FileDigest] = Field(fail_fast=True)
    direct: DirectSource | None = None
    """Of kind direct, and of full weights that can be had both ways."""
    chain: list[WeightsLink] = Field(default_factory=list, fail_fast=True)
    """What a delta is built on: a full version, each delta since, and last the version it applies to."""
    canary: Canary | None = None
    """Only kind base may lack it: a model as it comes has no learner that knows its log-probabilities."""

    @property
    def link(self) -> WeightsLink:
        """This version, as one that others are built on."""
        return WeightsLink(version=self.version, uri=self.uri, files=self.files)

    @property
    def whole(self) -> bool:
        """Whether its folder holds all of it, to be served as it is."""
        return self.kind in ("lora", "full")

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Self:
        if self.canary is None and self.kind != "base":
            raise ValueError(f"weights of kind {self.kind} without a canary")
        if (self.kind == "delta") != bool(self.chain):
            raise ValueError(f"weights of kind {self.kind} with a chain of {len(self.chain)}")
        if self.kind != "full" and (self.kind == "direct") != (self.direct is not None):
            raise ValueError(f"weights of kind {self.kind} with direct: {self.direct}")
        return self


LoadFailure = Literal["VerificationFailed", "UpdateFailed"]
"""Why weights were not taken: not what the manifest describes, or not to be had or loaded."""


class WeightsState(Record):
    """What a rollout server holds, by its own measurement."""

    version: PolicyVersion | None
    ready: bool
    """False while loading, and for good after a failed verification."""
    error: str | None = None
    reason: LoadFailure | None = None
    """With `error`: its kind."""
    canary_error: float | None = None
    """Mean absolute difference to the manifest's canary at the last load."""
    seconds: float | None = None
    """How long the last load took, download included."""


def _as_drawn(figures: object) -> object:
    found = bounds.named_numbers(figures)
    if not isinstance(found, dict):
        return found
    return {
        name: bounds.clipped(value, bounds.MAGNITUDE) if isinstance(value, int | float) else value
        for name, value in found.items()
    }


Figures = Annotated[dict[str, float], BeforeValidator(_as_drawn)]
"""A step's numbers by name. One beyond `bounds.MAGNITUDE` counts as that: a run that goes wrong is shown."""


class StepReport(Record):
    """The learner's word that it took step `step` with `groups`, and which step is durable by now.

    Written to the artifact store before it is sent. A learner that starts again goes on from the newest
    durable step: where that is an older one than `step`, the steps between are taken anew, from the same
    groups, in a new incarnation. It is sent again when a later step has become durable, and after every
    restart: handling it twice must change nothing. Step 0 announces the untrained weights.
    """

    step: int = Field(ge=0)
    version: PolicyVersion
    groups: list[str] = Field(fail_fast=True)
    """Ids of the batch's groups, whether trained on or filtered out."""
    train_tokens: dict[str, Annotated[int, Field(ge=0, le=int(bounds.MAGNITUDE))]]
    """Per group id, tokens that went through forward and backward (0 for a filtered group)."""
    weights: WeightsManifest
    durable: int = Field(ge=0)
    """The newest step with a whole checkpoint, when this was said: `step` or an older one."""
    metrics: Figures
    """`training/*`, `timing_s/*` and Headway's own, in the names of `headway_api.metrics`."""
    in_force: InForce = InForce()
    """What holds after the step: of a step with groups, what it was trained under."""
    directive: Directive | None = None
    """What was asked for in place of training."""
    restored: int | None = Field(default=None, ge=0)
    """The step among `directive.restore` whose weights and optimizer were taken up."""
    ended_at: float | None = None
    """When its weights were published, in Unix time of the learner. Reports of before do not say it."""
    refused: DirectiveRefusal | None = None
    """Why the directive was not done: then `in_force` is what it was, and so are the weights."""

    @property
    def trained(self) -> frozenset[str]:
        """Ids of the groups that had a gradient. The learner alone knows: it has the advantages."""
        return frozenset(group for group, tokens in self.train_tokens.items() if tokens)


class BatchFigures(Record):
    """What a step's batch came to, in the names of `headway_api.metrics`, without the learner's own figures.

    A function of the batch and of the step's report: without it a coordinator reads the batch again.
    """

    step: int = Field(ge=1)
    groups: list[str]
    """As in the step's report: a step may be taken anew, and then from other groups."""
    figures: Figures


class RowResult(Record):
    """What the tries on one row scored, in their order."""

    rewards: list[float]
    scores: list[float]


class ValidationRecord(Record):
    """What a finished validation came to."""

    step: int = Field(ge=0)
    reward: float
    external_score: float
    success: float
    episodes: int = Field(ge=0)
    failed: int = Field(ge=0)
    rows: dict[str, RowResult]
    """By group id: the rows of which a try was scored."""
    tasks: dict[str, dict[str, float]] | None = None
    """What each task came to; None where no column names tasks."""
    figures: dict[str, float]
    """What metrics show of it."""


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
