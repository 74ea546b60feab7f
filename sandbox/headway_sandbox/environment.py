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

Every method and every tool may be `async`. One instance lives for one episode, in a pod of its own that can
reach nothing and is destroyed afterwards.
One thread at a time calls it. `reset` must depend only on its arguments, and a tool only on its arguments, on
the arguments of `reset` and on earlier calls. Nothing checks this, but otherwise the same seed gives
different episodes. Anything that a method raises is reported, never scored.

This module uses the standard library only, and as little of it as possible: every episode pays for each
import.
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
    """One number, or one number a turn."""
    Returned: TypeAlias = "Value | tuple[Value, Mapping[str, float]] | Reward"
    """What `reward` may return: see `headway_sandbox.returns`."""
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
    """The first messages and the tools that the agent sees."""

    __slots__ = ("messages", "tools")

    def __init__(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None) -> None:
        self.messages = list(messages)
        self.tools = tools
        """Tools offered in this episode; None offers every method marked with `@tool`."""


class Reward:
    """The reward that the model is trained on."""

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
        """The reward of each of `transcript.turns`, for advantages by the turn; they add up to `value`.
        None: the whole reward comes at the end."""


class Call:
    """One tool call, as the server in the pod carried it out."""

    __slots__ = ("arguments", "content", "failed", "name")

    def __init__(self, name: str, arguments: Mapping[str, Any], content: str, failed: bool) -> None:
        self.name = name
        self.arguments = arguments
        self.content = content
        """The result that the agent saw."""
        self.failed = failed
        """Whether the call failed: the tool is unknown, refused its arguments or raised."""


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
        """Only calls that the server carried out. Text in which the model merely claims a call adds none."""
        self.truncated = truncated
        """Whether the episode ran out of turns, tokens or context before the agent ended it."""
        self.reported = None if reported is None else tuple(reported)
        """The reward that an `http` agent reports, one value or one a turn; None if it reported nothing.
        It is only a claim of that agent: use it, check it against what happened, or ignore it."""
        self.reported_metrics = dict(reported_metrics or {})
        """The metrics that the agent reported with its reward."""
        self.turns = turns
        """Number of the model's turns that reached the agent, in one conversation or several."""
        self.row = row or {}
        """The dataset row, for a reward that is a separate object without an environment."""
        self.reward = reward
        """In `group_reward`: what `reward` returned for this episode; otherwise None."""

    @property
    def answer(self) -> str:
        """Text of the agent's last message; empty if that message called a tool."""
        last = self.messages[-1] if self.messages else {}
        if last.get("role") != "assistant" or last.get("tool_calls"):
            return ""
        return str(last.get("content") or "")


class Environment(ABC):
    """Base class of every environment; `spec.environment.entrypoint` names a subclass as `module:Class`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Check and keep `spec.environment.config`; raise ValueError with the remedy if it is wrong."""
        self.config = config

    @abstractmethod
    def reset(self, row: Mapping[str, Any], seed: int) -> Observation | Awaitable[Observation]:
        """Enter the first state for one dataset row (it has every column)."""

    def tools(self) -> list[Tool] | Awaitable[list[Tool]]:
        """Every method marked with `@tool`, in source order."""
        return declared(self)

    @abstractmethod
    def reward(self, transcript: Transcript) -> Returned | Awaitable[Returned]:
        """Compute an episode's reward for training, also if it is unfinished (see `transcript.truncated`).

        A class may instead set it to an object, `reward = FieldAccuracy()`, which is called with the
        transcript.
        """

    group_reward: GroupReward | None = None
    """Rewards the episodes of one training group relative to each other. The method receives their
    transcripts, and returns a reward for each, of any shape that `reward` may return. It is called once, in
    a sandbox of its own, after `reset` with the group's row. Its rewards replace those of `reward`."""

    @abstractmethod
    def score(self, transcript: Transcript) -> float | Awaitable[float]:
        """Score an episode for people: strict, independent of `reward`; success is >= `successThreshold`."""

    def judge(self, name: str, messages: Sequence[Message], schema: Mapping[str, Any] | None = None) -> Any:
        """Ask the judge `name` of spec.judges and wait for its answer: text, or JSON that matches `schema`.

        Only `reward` and `score` may call this. If a judge fails, the episode ends and is retried.
        """
        from headway_sandbox.judges import judge  # episodes without a question do not pay for its imports

        return judge(name, messages, schema)
