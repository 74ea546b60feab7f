"""The inputs of the checks: facts about the job, baseline episodes, and results of scripts.

Checks read nothing else. So a coordinator, a command line and a test can give a check the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from headway_analysis.estimate.plan import Plan
from headway_api.document import JsonView
from headway_api.records import EpisodeRecord, GroupRecord


@dataclass(frozen=True)
class Facts:
    """Facts about job, model and data that do not depend on the model's behaviour."""

    rows: Sequence[JsonView]
    """Training rows."""
    validation: Sequence[JsonView] = ()
    test: Sequence[JsonView] = ()
    overlap_allowed: bool = False
    """`spec.data.allowOverlap`: splits may share rows."""
    prompt_column: str | None = None
    """`spec.data.train.promptColumn`."""
    group_size: int = 8
    batch_size: int = 1
    """Groups of a training step."""
    max_steps: int = 1
    success_threshold: float = 1.0
    """An episode succeeds if its external score is at least this."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    max_turns: int | None = 16
    """Maximum turns of an episode. None for an agent with its own loop."""
    max_tokens: int = 1024
    """Maximum tokens of a turn."""
    context_length: int = 4096
    """Maximum tokens of an episode."""
    judged: bool = False
    """Whether reward or score asked a judge: a model, which may answer the same question differently."""
    relative: bool = False
    """Whether `group_reward` rewards the episodes of a group relative to each other. A script belongs to no
    group, so it has only the number that `reward` returned, and no episode is trained on that number."""
    contract: JsonView | None = None
    """`spec.environment.contract`: an OpenAPI document, or MCP's list of tools."""
    seed: int = 0
    """The job's seed."""
    price: Callable[[str], Decimal | None] | None = None
    """Key of the bill -> price of a token or second today; None if there is no bill."""
    price_edition: str = ""
    """The price book and its entry: `default@2026-01-01`."""
    plan: Plan | None = None
    """How many episodes the job plays, held-out ones included; None: only training episodes are known."""
    trains_alike: bool = False
    """Whether the advantage method trains also groups whose episodes all have the same reward."""
    scripted: bool = False
    """Whether a scripted agent, of `headway check` or of an author's test, played the baseline instead of a
    model."""
    endpoint: str | None = None
    """Name of the model at an endpoint that sampled the baseline; None if the job's own model did."""
    tool_call_parser: str = "auto"
    other_parsers: Mapping[str, int] = field(default_factory=dict)
    """Name of another parser -> malformed calls of the baseline that this parser would have read."""


@dataclass(frozen=True)
class Call:
    """One tool call of a script."""

    name: str
    arguments: JsonView


@dataclass(frozen=True)
class Script:
    """An episode that needs no model: a row, tool calls, and the last message."""

    check: str
    """Id of the check that made the script."""
    label: str
    """What the script tries, such as `second run` or `field dropped: tier`. It is unique within the check."""
    row: JsonView
    environment_seed: int
    calls: tuple[Call, ...] = ()
    """The tool calls in their order. If a tool ends the episode, the later calls are left out."""
    answer: str | None = None
    """Text of the assistant's last message; None if the script ends after its calls."""
    like: str | None = None
    """Id of the baseline episode from which the script is made."""
    truncated: bool = False
    after: str | None = None
    """Label of another script of the same check, which must end before this script begins."""


@dataclass(frozen=True)
class ToolResult:
    """A tool call and its result."""

    name: str
    arguments: JsonView
    content: str
    seconds: float
    done: bool = False


@dataclass(frozen=True)
class PlayedScript:
    """The result of a script."""

    script: Script
    messages: Sequence[JsonView] = ()
    """The first messages, from the environment's reset."""
    tools: Sequence[JsonView] = ()
    """OpenAI specs of the tools that the environment offered."""
    results: Sequence[ToolResult] = ()
    reward: float | None = None
    score: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    """Why the script has no reward: what failed, with method, file and line if they are known."""
    cause: str | None = None
    """Reason in one word, such as `ResetFailed`, `RewardNotFinite` or `JudgeSlow`. None if neither the
    environment nor a judge caused the error."""
    seconds: float = 0.0
    """Seconds from the sandbox's lease to the judgement."""
    waited: float = 0.0
    """Seconds that the script waited for its sandbox."""


@dataclass(frozen=True)
class Probe:
    """One destination that a sandbox tried to reach."""

    name: str
    """One of `metadata address`, `API server`, `DNS`, `DNS over UDP` and `internet`."""
    address: str
    reached: bool
    seconds_after_start: float
    """Age of the pod at the time of the probe."""


@dataclass(frozen=True)
class JudgeQuestion:
    """A question that reward or score asked a judge."""

    judge: str
    """Name of one of `spec.judges`."""
    messages: Sequence[JsonView]
    schema: JsonView | None = None
    """JSON schema of the answer; None: the answer is text."""


@dataclass(frozen=True)
class AskedTwice:
    """One question that its judge was asked twice more."""

    question: JudgeQuestion
    answers: tuple[Any, ...] = ()
    """Both answers; fewer if the judge failed to answer."""
    error: str | None = None
    """Why an answer is missing."""


@dataclass(frozen=True)
class Sampled:
    """One baseline episode, with facts that its record lacks."""

    record: EpisodeRecord
    group: GroupRecord
    row: JsonView
    environment_seed: int
    tools: Sequence[JsonView] = ()
    """OpenAI specs of the tools that the environment offered."""
    results: Sequence[ToolResult] = ()
    """The episode's tool calls and their results, in order of execution."""
    tool_tokens: Sequence[int] = ()
    """Number of tokens of each result, by the model's own tokenizer."""
    prompt_tokens: int = 0
    """Number of tokens of the first prompt by the model's own tokenizer, tools included."""
    malformed: Sequence[str] = ()
    """Texts of the turns whose tool calls could not be read."""
    questions: Sequence[JudgeQuestion] = ()
    """Questions that judges were asked about the episode. The first episode of a group also has the questions
    about the whole group."""
    row_tokens: int = 0
    """Number of tokens of the episode's training rows."""
    conversation_tokens: int | None = None
    """Tokens of the whole conversation by the model's own tokenizer; None if no endpoint sampled it."""


@dataclass(frozen=True)
class Baseline:
    """Everything that was measured before the first gradient."""

    facts: Facts
    sampled: Sequence[Sampled] = ()
    wanted: int = 0
    """Episodes that the job asks for. While episodes still run, `sampled` has fewer."""
    probes: Sequence[Probe] = ()
    seconds: float = 0.0
    """Seconds from the begin of the first episode to the end of the last."""
    concurrency: int = 1
    """Maximum number of episodes that run at once."""
    asked_twice: Sequence[AskedTwice] = ()
    """Questions to judges that were asked again."""

    @property
    def scored(self) -> list[Sampled]:
        """Episodes with a reward."""
        return [one for one in self.sampled if one.record.reward is not None]
