"""What an episode was: its tokens, turns, judgement and times."""

from __future__ import annotations

from typing import Any, Final, Literal, Self, get_args

from pydantic import Field, model_validator

from headway_api.record import Record
from headway_api.records.versions import Outcome, PolicyVersion


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
