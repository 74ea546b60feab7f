"""What the author of an environment writes: a first state, tools, a reward and a score.

    class RefundDesk(Environment):
        def reset(self, row, seed):
            self.case = row["case_id"]
            return Observation([system("Follow the procedure..."), user(row["prompt"])])

        @tool
        def get_case(self, case_id: str) -> dict[str, str]:
            '''Look up a case.'''
            return {"tier": "gold"}

        def reward(self, transcript): ...     # dense, trained on, within spec.reward.range
        def score(self, transcript): ...      # strict, only reported, never trained on

Each of them, and each tool, may be `async`. One instance lives for one episode, in a pod of its own that can
reach nothing and is destroyed afterwards.
It is called by one thread at a time. `reset` must depend on its arguments alone, and tools on them and on the
calls before: nothing checks that, and otherwise the same seed gives other episodes. Anything a method raises
is reported, never scored.

Standard library only, and as little of it as possible: every import here is paid once an episode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from headway_sandbox.tools import Done, Tool, ToolError, declared, tool

TYPE_CHECKING = False  # `typing` itself costs milliseconds at every start
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import Any, TypeAlias

    Message = Mapping[str, Any]
    """An OpenAI chat message."""
    Value = float | Sequence[float]
    """A number, or one a turn."""
    Returned: TypeAlias = "Value | tuple[Value, Mapping[str, float]] | Reward"
    """What a reward may be: `headway_sandbox.returns`."""
    GroupReward: TypeAlias = "Callable[[Sequence[Transcript]], Any]"

__all__ = [
    "Call",
    "Done",
    "Environment",
    "Observation",
    "Reward",
    "ToolError",
    "Transcript",
    "system",
    "tool",
    "user",
]


def system(text: str) -> Message:
    """A system message."""
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    """A user message."""
    return {"role": "user", "content": text}


class Observation:
    """What the agent sees first."""

    __slots__ = ("messages", "tools")

    def __init__(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None) -> None:
        self.messages = list(messages)
        self.tools = tools
        """Tools offered in this episode; None offers every method marked with `@tool`."""


class Reward:
    """What the model is trained on."""

    __slots__ = ("metrics", "turns", "value")

    def __init__(
        self,
        value: float,
        metrics: Mapping[str, float] | None = None,
        turns: Sequence[float] | None = None,
    ) -> None:
        self.value = value
        """Finite and within `spec.reward.range`."""
        self.metrics = dict(metrics or {})
        """The reward's parts, averaged over episodes in logs and metrics."""
        self.turns = None if turns is None else list(turns)
        """What each of `transcript.turns` earned, for advantages by the turn; they add up to `value`. None:
        all of it came at the end."""


class Call:
    """One tool call, as the server in the pod carried it out."""

    __slots__ = ("arguments", "content", "failed", "name")

    def __init__(self, name: str, arguments: Mapping[str, Any], content: str, failed: bool) -> None:
        self.name = name
        self.arguments = arguments
        self.content = content
        """What the agent was shown."""
        self.failed = failed
        """The tool is unknown, refused its arguments or raised."""


class Transcript:
    """A finished episode: `calls` is the pod's own record, `messages` is the conversation around it."""

    __slots__ = ("calls", "messages", "reported", "reported_metrics", "reward", "row", "truncated", "turns")

    def __init__(
        self,
        messages: Sequence[Message],
        calls: Sequence[Call],
        truncated: bool,
        reported: Sequence[float] | None = None,
        reported_metrics: Mapping[str, float] | None = None,
        turns: int = 0,
        row: Mapping[str, Any] | None = None,
        reward: Reward | None = None,
    ) -> None:
        self.messages = messages
        self.calls = calls
        """Only what was really called: text in which the model merely claims a call adds nothing here."""
        self.truncated = truncated
        """The episode ran out of turns, tokens or context before the agent ended it."""
        self.reported = None if reported is None else tuple(reported)
        """What an `http` agent says its episode is worth, one value or one a turn; None where it said
        nothing. It is the word of whoever runs that agent: use it, check it against what happened, or not."""
        self.reported_metrics = dict(reported_metrics or {})
        """The parts of it that the agent sent along."""
        self.turns = turns
        """The model's turns that reached the agent, in one conversation or several."""
        self.row = row or {}
        """The dataset row, for a reward that is an object of its own and has no environment."""
        self.reward = reward
        """In `group_reward`: what `reward` said of the episode alone; else None."""

    @property
    def answer(self) -> str:
        """Text of the message the agent ended with; empty where its last message asked for a tool."""
        last = self.messages[-1] if self.messages else {}
        if last.get("role") != "assistant" or last.get("tool_calls"):
            return ""
        return str(last.get("content") or "")


class Environment(ABC):
    """Base of every environment; `spec.environment.entrypoint` names a subclass as `module:Class`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Check and keep `spec.environment.config`; raise ValueError with the remedy where it is wrong."""
        self.config = config

    @abstractmethod
    def reset(self, row: Mapping[str, Any], seed: int) -> Observation | Awaitable[Observation]:
        """Enter the first state for one dataset row (every column is there)."""

    def tools(self) -> list[Tool] | Awaitable[list[Tool]]:
        """Every method marked with `@tool`, in the order they are written."""
        return declared(self)

    @abstractmethod
    def reward(self, transcript: Transcript) -> Returned | Awaitable[Returned]:
        """Judge an episode for training. Unfinished episodes are judged too: see `transcript.truncated`.

        May be given as an object instead, `reward = FieldAccuracy()`, which is called with the transcript.
        """

    group_reward: GroupReward | None = None
    """Rewards the episodes of one training group against each other: a method that is given their
    transcripts, and returns a reward for each, of any shape that `reward` may return. It is called once, in a
    sandbox of its own, after `reset` with the group's row. It is trained on in the place of `reward`."""

    @abstractmethod
    def score(self, transcript: Transcript) -> float | Awaitable[float]:
        """Judge an episode for people: strict, independent of `reward`; success is >= `successThreshold`."""

    def judge(self, name: str, messages: Sequence[Message], schema: Mapping[str, Any] | None = None) -> Any:
        """Ask the judge `name` of spec.judges, and wait: its text, or JSON that holds to `schema`.

        For `reward` and `score` alone. A judge that fails ends the episode, which is tried again.
        """
        from headway_sandbox.judges import judge  # episodes without a question start without what it imports

        return judge(name, messages, schema)
