"""The input of the checks: facts about the job, baseline episodes, and scripts as they were played.

No check reads anything else, so that a coordinator, a command line and a test can give it the same.
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
    """What job, model and data say, whatever the model does."""

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
    """An episode whose external score reaches it is a success."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    max_turns: int | None = 16
    """None for an agent with its own loop."""
    max_tokens: int = 1024
    """Maximum tokens of a turn."""
    context_length: int = 4096
    """Maximum tokens of an episode."""
    judged: bool = False
    """Whether reward or score asked a judge: a model, which may answer one question in two ways."""
    relative: bool = False
    """Whether `group_reward` rewards the episodes of a group against each other. A script is in no group: its
    reward is what `reward` alone said, and nothing is paid by that."""
    contract: JsonView | None = None
    """`spec.environment.contract`: an OpenAPI document, or MCP's list of tools."""
    seed: int = 0
    """The job's."""
    price: Callable[[str], Decimal | None] | None = None
    """What a token or second of a class costs today, as the job's bill has it; None if nobody bills."""
    price_edition: str = ""
    """Which prices these are: `default@2026-01-01`."""
    plan: Plan | None = None
    """How many episodes the job plays, held-out ones included; None: only training episodes are known."""
    trains_alike: bool = False
    """Whether a group whose episodes all earned the same is trained on too, by the method of advantages."""
    scripted: bool = False
    """Whether an agent of `headway check` or of an author's test played the baseline. No model did."""
    endpoint: str | None = None
    """Model of an endpoint that sampled the baseline; None: the job's own model did."""
    tool_call_parser: str = "auto"
    other_parsers: Mapping[str, int] = field(default_factory=dict)
    """Parser -> malformed calls of the baseline that it would have read."""


@dataclass(frozen=True)
class Call:
    """One tool call of a script."""

    name: str
    arguments: JsonView


@dataclass(frozen=True)
class Script:
    """An episode that needs no model: a row, tool calls, and the message it ends with."""

    check: str
    """Id of the check that asks for it."""
    label: str
    """What the script tries; tells a check's scripts apart: `second run`, `field dropped: tier`."""
    row: JsonView
    environment_seed: int
    calls: tuple[Call, ...] = ()
    """In their order. If a tool ends the episode, the later calls are left out."""
    answer: str | None = None
    """Text of the last message, the assistant's; None: the script ends after its calls."""
    like: str | None = None
    """Id of the baseline's episode that it is made from."""
    truncated: bool = False
    after: str | None = None
    """Label of another script of the same check that is played to its end before this one begins."""


@dataclass(frozen=True)
class ToolResult:
    """What a tool answered."""

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
    """What the environment's reset said."""
    tools: Sequence[JsonView] = ()
    """OpenAI tool specs that it offered."""
    results: Sequence[ToolResult] = ()
    reward: float | None = None
    score: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    """Why it has no reward: what failed, with method, file and line if they are known."""
    cause: str | None = None
    """Reason, if environment or judge is to blame: `ResetFailed`, `RewardNotFinite`, `JudgeSlow`."""
    seconds: float = 0.0
    """From the sandbox's lease to the judgement."""
    waited: float = 0.0
    """Seconds of waiting for the sandbox."""


@dataclass(frozen=True)
class Probe:
    """One destination that a sandbox tried to reach."""

    name: str
    """`metadata address`, `API server`, `DNS`, `DNS over UDP`, `internet`."""
    address: str
    reached: bool
    seconds_after_start: float
    """Age of the pod at the probe."""


@dataclass(frozen=True)
class JudgeQuestion:
    """What reward or score asked a judge."""

    judge: str
    """Name of one of `spec.judges`."""
    messages: Sequence[JsonView]
    schema: JsonView | None = None
    """JSON schema of the answer; None: the answer is text."""


@dataclass(frozen=True)
class AskedTwice:
    """One question, asked of its judge twice more."""

    question: JudgeQuestion
    answers: tuple[Any, ...] = ()
    """Both answers, or fewer if the judge gave none."""
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
    """OpenAI tool specs that the environment offered."""
    results: Sequence[ToolResult] = ()
    """Its tool calls, as they were carried out, in their order."""
    tool_tokens: Sequence[int] = ()
    """Tokens of each result, by the model's own tokenizer."""
    prompt_tokens: int = 0
    """Tokens of the first prompt by the model's own tokenizer, tools included."""
    malformed: Sequence[str] = ()
    """Text of the turns whose tool calls could not be read."""
    questions: Sequence[JudgeQuestion] = ()
    """What was asked of judges about it, or, in the first of a group's episodes, about the group."""
    row_tokens: int = 0
    """Tokens of its rows that would be trained on."""
    conversation_tokens: int | None = None
    """Tokens of the whole conversation by the model's own tokenizer, if an endpoint sampled it."""


@dataclass(frozen=True)
class Baseline:
    """Everything that was measured before the first gradient."""

    facts: Facts
    sampled: Sequence[Sampled] = ()
    wanted: int = 0
    """Episodes that the job asks for; `sampled` may hold fewer while they are still being run."""
    probes: Sequence[Probe] = ()
    seconds: float = 0.0
    """From the first episode's begin to the last one's end."""
    concurrency: int = 1
    """Maximum episodes at once."""
    asked_twice: Sequence[AskedTwice] = ()
    """Questions to judges that were asked again."""

    @property
    def scored(self) -> list[Sampled]:
        """Episodes with a reward."""
        return [one for one in self.sampled if one.record.reward is not None]
