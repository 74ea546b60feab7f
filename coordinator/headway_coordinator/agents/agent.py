"""The interface of the three kinds of agent. They play one episode, and report how it ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headway_api.records import Purpose
from headway_coordinator.gateway.asks import Session
from headway_coordinator.sandboxes import Sandbox
from headway_coordinator.trajectory.calls import Message, Tool


@dataclass
class EpisodeContext:
    """One attempt at one episode, after the environment's reset."""

    session: Session
    sandbox: Sandbox
    purpose: Purpose
    row: dict[str, Any]
    """Every column of the dataset row."""
    first: Sequence[Message]
    """The environment's first messages."""
    tools: Sequence[Tool]
    messages: list[Message] = field(default_factory=list)
    """The conversation, written as it happens, so a failure keeps the messages so far."""
    fault: Callable[[], str | None] = lambda: None
    """Returns a fault of the platform that the agent met and no later answer has resolved, or None."""


@dataclass(frozen=True)
class AgentResult:
    """The end of an agent's work."""

    truncated: bool
    why: str | None = None
    """What truncated it."""
    reported: list[float] | None = None
    """The agent's own reward, as input to the environment's judgement: one value, or one a turn."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Numbers that the agent reported with its reward."""


class Agent(Protocol):
    """Acts in an episode."""

    async def play(self, context: EpisodeContext) -> AgentResult:
        """Play the episode. The caller sets the deadline.

        Raises:
            AgentError: the agent itself failed.
            InfraError: a part of the platform failed, or the cause is unknown.
        """
