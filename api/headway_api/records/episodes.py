"""An episode's tokens, turns, judgement and times."""

from __future__ import annotations

from typing import Any, Final, Literal, Self, get_args

from pydantic import Field, model_validator

from headway_api.record import Record
from headway_api.records.versions import Outcome, PolicyVersion


class VersionSpan(Record):
    """`version` sampled the tokens `[start, end)` of a row."""

    start: int = Field(ge=0)
    end: int = Field(gt=0)
    version: PolicyVersion


class TurnSpan(Record):
    """The episode's turn `turn` sampled the tokens `[start, end)` of a row."""

    start: int = Field(ge=0)
    end: int = Field(gt=0)
    turn: int = Field(ge=0)


class TrainingRow(Record):
    """One sequence for the learner, as recorded. An episode whose history only grew has exactly one."""

    tokens: list[int]
    mask: list[int]
    """1 for a token that the model sampled (it is trained), 0 for a token that the model received (prompt,
    tool result)."""
    logprobs: list[float]
    """Log-probability that the sampler gave each token, at the sampling temperature; 0.0 if mask is 0."""
    versions: list[VersionSpan]
    """Which version sampled each token. The spans cover exactly the positions where mask is 1."""
    turns: list[TurnSpan] = Field(default_factory=list)
    """Which turn sampled each token. The spans cover the same positions, in order. Empty: all tokens belong
    to turn 0."""

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        if not len(self.tokens) == len(self.mask) == len(self.logprobs):
            raise ValueError("tokens, mask and logprobs must have one entry a token")
        if self.turns:
            covered = [place for span in self.turns for place in range(span.start, span.end)]
            if covered != [place for place, trained in enumerate(self.mask) if trained]:
                raise ValueError("turns must cover exactly the positions where mask is 1")
        return self

    @property
    def action_tokens(self) -> int:
        """Number of tokens that the model sampled."""
        return sum(self.mask)


MalformedKind = Literal["unclosed", "no_name", "not_json", "arguments", "structure", "other"]
"""What is wrong with a tool call that cannot be parsed.

unclosed: it has no end. no_name: it names no tool. not_json: it is not JSON where JSON is expected.
arguments: its arguments are not an object, or not values. structure: its parts are in the wrong place.
other: anything else.
"""


MALFORMED_KINDS: tuple[MalformedKind, ...] = get_args(MalformedKind)


class Turn(Record):
    """One model call: what it cost and how it ended. The episode's rows have the tokens themselves."""

    index: int = Field(ge=0)
    prompt_tokens: int = Field(ge=0)
    """All token ids that were sent, `cached_tokens` included."""
    cached_tokens: int = Field(ge=0)
    """The part of the prompt that the engine found in its prefix cache."""
    sampled_tokens: int = Field(ge=0)
    finish_reason: str
    malformed_tool_calls: int = Field(default=0, ge=0)
    malformed_kinds: dict[MalformedKind, int] = Field(default_factory=dict)
    """Number of malformed calls of each kind."""
    policy_version: PolicyVersion
    delivered: bool = True
    """Whether the answer reached the agent. If it did not, no row has the turn's tokens, because they had no
    part in the reward. They are billed as discarded."""
    guided: bool = False
    """Whether a JSON schema restricted the sampler to tokens that follow the schema. Such a turn is billed,
    and its tokens are context in the rows. They are not trained: no record says which tokens were excluded,
    so their ratios would be wrong."""
    counted: bool = True
    """Whether an endpoint reported its cost. If it did not, the tokens are unknown and are 0 here."""


class Judgement(Record):
    """A question of an episode to a judge, and the cost of its answer."""

    judge: str
    """Name of one of spec.judges."""
    question: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Digest of judge and question. If the answer is kept, the store has it under this digest."""
    cached: bool = False
    """Whether the answer existed already, and cost nothing."""
    prompt_tokens: int = Field(default=0, ge=0)
    """Prompt tokens as the judge's endpoint counts them, for every answer that it gave, usable or not."""
    sampled_tokens: int = Field(default=0, ge=0)
    counted: bool = True
    """Whether the endpoint reported its cost. If it did not, the tokens are unknown and are 0 here."""
    model: str | None = None
    """Model whose prices apply: the judge's `endpoint.model` or `model.base`. Absent: the answer cost
    nothing, or is older than this field."""


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
"""How a history differs from what was sampled.

Causes in the agent:
    tools, system: it sent other tools, or another system prompt.
    dropped, inserted: it left out messages, or added some.
    role, calls, arguments: a message has another role, other tool calls, or other arguments of a call.
    call_id: a tool's answer names another call.
    whitespace, content: only blanks differ, or other text of a message.
    again: it sent the same history again.
Causes in the model's chat template:
    cut_off: it cannot continue a turn that was cut off.
    thought: it drops reasoning.
    template: it writes the history differently.
"""


FORK_REASONS: tuple[ForkReason, ...] = get_args(ForkReason)


class Drift(Record):
    """The turns of an episode whose history differs from what was sampled for one reason, and where the first
    of these turns differs."""

    reason: ForkReason
    count: int = Field(ge=1)
    turn: int = Field(ge=0)
    """Index of the first of these turns in the episode, in the order of the requests."""
    message: int | None = Field(default=None, ge=0)
    """Index, from 0, of the first message of that turn's request that differs. None: no message differs."""
    role: str | None = Field(default=None, max_length=32)
    """Role of that message in the request."""


SpanKind = Literal["sandbox", "reset", "agent", "place", "turn", "tool", "judgement", "release"]
"""What an episode waits for.

sandbox: a sandbox. reset: the environment's reset. agent: the agent, from its start to its end. place: a free
place for a turn. turn: the model's answer. tool: a tool's answer. judgement: the judgement. release: the
return of its sandbox. Spans of places, turns and tools lie within the agent's span. In the rest of that span
the agent itself runs.
"""


MAX_SPANS: Final = 4096
"""Maximum spans of one episode; later ones are not recorded."""


MAX_IGNORED: Final = 256
"""Maximum names of fields that were not applied in one episode; `others` counts the rest."""


class EpisodeSpan(Record):
    """One wait of an episode, with its beginning and end."""

    kind: SpanKind
    name: str = Field(default="", max_length=128)
    """For a tool: its name. For a turn: its number in the order of the requests."""
    began: float = Field(ge=0)
    """Seconds after the episode's start, by a monotonic clock."""
    ended: float = Field(ge=0)


class EpisodeRecord(Record):
    """One finished episode. `outcome` says whether `reward` is valid."""

    episode_id: str
    """`<group id>-<index>-<attempt>`: a retry is another episode."""
    group_id: str
    index: int = Field(ge=0)
    attempt: int = Field(ge=0)
    outcome: Outcome
    error: str | None = None
    """For people: what failed, in the failing part's own words."""
    cause: str | None = Field(default=None, max_length=64)
    """Reason, if a part of the job itself failed: `ResetFailed`, `RewardFailed`, `JudgeSlow`."""
    timed_out: bool = False
    """Whether the episode did not end within rollout.timeoutSeconds. It is then lost, or Truncated and
    judged."""
    token_limited: bool = False
    """Whether the episode is Truncated because it reached rollout.episodeTokenLimit."""
    reward: float | None = None
    """Reward that the model is trained on; None exactly if outcome is InfraError."""
    turn_rewards: list[float] | None = None
    """Reward of each turn, by the turn's index. It is 0 for a turn that was not delivered. They add up to
    `reward`. None: the whole reward came at the end."""
    score: float | None = None
    """The strict external score, separate from the reward; success is score >= successThreshold."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Parts of the reward by name, as the environment reports them (completion, field accuracy...)."""
    judgements: list[Judgement] = Field(default_factory=list)
    """Questions of the episode's reward and score to judges, in the order of the answers. A lost episode may
    have them too."""
    messages: list[dict[str, Any]]
    """The conversation as a person reads it (OpenAI chat form)."""
    turns: list[Turn]
    rows: list[TrainingRow]
    forks: int = Field(default=0, ge=0)
    """Number of turns whose history differs from what was sampled. Each adds a row."""
    drifts: list[Drift] = Field(default_factory=list, max_length=len(FORK_REASONS))
    """Why those histories differ, one entry for each reason. Their counts add up to `forks`; older records
    have none."""
    ignored: dict[str, int] = Field(default_factory=dict, max_length=MAX_IGNORED)
    """Field of the agent's requests that was not applied -> number of requests with it. These are unknown
    fields, and known ones that are never refused (`seed`). `spec.agent.lenient` adds fields that would
    otherwise be refused."""
    differing_answers: int = Field(default=0, ge=0)
    """If a stored episode was scored again: number of tool calls whose answer differs from the recorded
    answer."""
    sandbox_seconds: float = Field(ge=0)
    queued_at: float | None = None
    """Unix time when the episode began to wait for its place, and for judges that do not answer. Older
    records do not have it."""
    started_at: float
    finished_at: float
    spans: list[EpisodeSpan] = Field(default_factory=list, max_length=MAX_SPANS)
    """The episode's waits, in the order in which they ended. Older records have none."""


SampledBy = Literal["servers", "endpoint", "nobody"]
"""Who sampled a group's tokens; `nobody`: stored episodes were scored again."""
