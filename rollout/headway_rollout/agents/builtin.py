"""The platform's own agent: sample a turn, run its tool calls in the sandbox, repeat.

A tool call that cannot be read stays in the trajectory as it was sampled, is counted, and is answered with
an error the model can learn from. Running into maxTurns, maxTokens or the context truncates the episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headway_api.sandbox_api import ToolReply
from headway_rollout.gateway.core import Completion, ContextFull, Gateway, Session, call_id
from headway_rollout.trajectory.calls import Call, Message, Tool


class Tools(Protocol):
    """Whatever carries out tool calls: the episode's sandbox."""

    async def tool(self, name: str, arguments: dict[str, object]) -> ToolReply: ...


@dataclass(frozen=True)
class Played:
    """How the loop ended."""

    truncated: bool
    why: str | None = None
    """What truncated it."""


async def play(
    gateway: Gateway,
    session: Session,
    sandbox: Tools,
    first: Sequence[Message],
    tools: Sequence[Tool],
    *,
    messages: list[Message],
    max_turns: int,
    system_prompt: str | None = None,
) -> Played:
    """Act out one episode, from the environment's first messages to the model's last.

    The conversation is written into `messages` as it happens, so that a failure leaves what was said so far.
    """
    messages += opening(first, system_prompt)
    for _ in range(max_turns):
        try:
            completion = await gateway.chat(session, messages, tools)
        except ContextFull as full:
            return Played(truncated=True, why=str(full))
        messages.append(completion.message)
        if completion.finish_reason == "length":
            return Played(truncated=True, why="a turn reached its most tokens")
        if not completion.calls:
            return Played(truncated=False)
        observations, done = await _observe(sandbox, completion, len(session.turns) - 1)
        messages += observations
        if done:
            return Played(truncated=False)
    return Played(truncated=True, why=f"no answer within {max_turns} turns")


def opening(first: Sequence[Message], system_prompt: str | None) -> list[Message]:
    """The first messages; a system prompt from the spec takes the place of the environment's own."""
    if system_prompt is None:
        return list(first)
    rest = [message for message in first if message.get("role") != "system"]
    return [{"role": "system", "content": system_prompt}, *rest]


async def _observe(sandbox: Tools, completion: Completion, turn: int) -> tuple[list[Message], bool]:
    """Answer every attempted call in order; stops at the first that ends the episode."""
    observations: list[Message] = []
    for index, call in enumerate(completion.calls):
        content, done = await _answer(sandbox, call)
        observation: Message = {"role": "tool", "tool_call_id": call_id(turn, index), "content": content}
        observations.append(observation | ({"name": call.name} if call.name else {}))
        if done:
            return observations, True
    return observations, False


async def _answer(sandbox: Tools, call: Call) -> tuple[str, bool]:
    if call.problem is not None or call.name is None or call.arguments is None:
        return f"error: the tool call could not be read ({call.problem}); write it as specified", False
    reply = await sandbox.tool(call.name, call.arguments)
    return reply.content, reply.done
