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
    """1 for a token that the model sampled (it is trained), 0 for one that was given (prompt, tool
    result)."""
    logprobs: list[float]
    """Log-probability that the sampler gave each token, at the sampling temperature; 0.0 if mask is 0."""
    versions: list[VersionSpan]
    """They cover exactly the positions where mask is 1."""
    turns: list[TurnSpan] = Field(default_factory=list)
    """They cover the same positions, in order. Empty: all of them belong to turn 0."""

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
"""What is wrong with a call that cannot be parsed. It has no end. It names no tool. It is not the JSON that
it should be. Its arguments are not an object, or not values. Its parts are in the wrong place. Anything
else."""


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
    """Whether it reached the agent. No row has the tokens of a turn that did not, since they had no part in
    the reward. They are billed as discarded."""
    guided: bool = False
    """Whether a JSON schema restricted it: the sampler saw only tokens that follow the schema. It is billed,
    and is context in the rows. Nobody recorded which tokens were hidden, so no ratio of it would be right."""
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

The agent may have caused it. It sent other tools, or another system prompt. It left messages out, or put some
in. A message has another role, other tool calls, or other arguments of a call. A tool's answer names another
call. Blanks or other words differ. Or the agent sent the same history again. The model's chat template may
also have caused it: it cannot continue a cut-off turn, drops reasoning, or writes the history otherwise.
"""


FORK_REASONS: tuple[ForkReason, ...] = get_args(ForkReason)


class Drift(Record):
    """Turns of an episode whose history differs from what was sampled, for one reason, and where the first of
    them did."""

    reason: ForkReason
    count: int = Field(ge=1)
    turn: int = Field(ge=0)
    """Index of the first such turn in the episode, in the order of the requests."""
    message: int | None = Field(default=None, ge=0)
    """The first message of that turn's request that differs, from 0. None: none differs."""
    role: str | None = Field(default=None, max_length=32)
    """Role of that message in the request."""


SpanKind = Literal["sandbox", "reset", "agent", "place", "turn", "tool", "judgement", "release"]
"""What an episode waits for: a sandbox, the environment's reset, the agent, or a place for a turn. Also an
answer of the model, a tool, the judgement, or the return of its sandbox. The agent's span lasts from
its start to its end. Places, turns and tools are within it, and in the rest of it the agent itself runs."""


MAX_SPANS: Final = 4096
"""Maximum spans of one episode; later ones are not recorded."""


MAX_IGNORED: Final = 256
"""Maximum names of fields that were not applied in one episode; `others` counts the rest."""


class EpisodeSpan(Record):
    """One wait of an episode, and when it was."""

    kind: SpanKind
    name: str = Field(default="", max_length=128)
    """For a tool its name, for a turn its number in the order of the requests."""
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
    """Whether it did not end within rollout.timeoutSeconds. It is then lost, or Truncated and judged."""
    token_limited: bool = False
    """Whether it is Truncated because it sampled the tokens of rollout.episodeTokenLimit."""
    reward: float | None = None
    """Reward that the model is trained on; None exactly if outcome is InfraError."""
    turn_rewards: list[float] | None = None
    """Reward of each turn, by the turns' index, 0 for a turn that was not delivered; they add up to `reward`.
    None: the whole reward came at the end."""
    score: float | None = None
    """The strict external score, separate from the reward; success is score >= successThreshold."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """The reward's own parts (completion, field accuracy...)."""
    judgements: list[Judgement] = Field(default_factory=list)
    """Questions of its reward and score to judges, in the order of the answers; a lost episode has them
    too."""
    messages: list[dict[str, Any]]
    """The conversation as a person reads it (OpenAI chat form)."""
    turns: list[Turn]
    rows: list[TrainingRow]
    forks: int = Field(default=0, ge=0)
    """Turns whose history was not one that had been sampled. Each adds a row."""
    drifts: list[Drift] = Field(default_factory=list, max_length=len(FORK_REASONS))
    """Why it was not, one entry for each reason. Their counts add up to `forks`; older records have none."""
    ignored: dict[str, int] = Field(default_factory=dict, max_length=MAX_IGNORED)
    """Fields of the agent's requests that were not applied, and in how many requests. They are unknown ones,
    and some that are never refused (`seed`). `spec.agent.lenient` adds those that would otherwise be
    refused."""
    differing_answers: int = Field(default=0, ge=0)
    """Of an episode that was scored again: tool calls that were now answered otherwise than recorded."""
    sandbox_seconds: float = Field(ge=0)
    queued_at: float | None = None
    """When it began to wait for its place, and for judges that do not answer. Older records do not have
    it."""
    started_at: float
    finished_at: float
    spans: list[EpisodeSpan] = Field(default_factory=list, max_length=MAX_SPANS)
    """Its waits, in the order in which they ended. Older records have none."""


SampledBy = Literal["servers", "endpoint", "nobody"]
"""Who sampled a group's tokens; `nobody`: stored episodes were scored again."""
