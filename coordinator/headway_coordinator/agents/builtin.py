"""The platform's own agent: sample a turn, run its tool calls in the sandbox, repeat.

A tool call that cannot be read stays in the trajectory as it was sampled, and is counted. The agent answers
with an error message, from which the model can learn. Reaching maxTurns, maxTokens, episodeTokenLimit or the
end of the context truncates the episode.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway_api.opening import opening
from headway_coordinator.agents.agent import AgentResult, EpisodeContext
from headway_coordinator.faults import AgentError
from headway_coordinator.gateway.allowance import NoTokensLeftError
from headway_coordinator.gateway.asks import Ask, Chat, Completion, RenderError
from headway_coordinator.sandboxes import Tools
from headway_coordinator.trajectory.calls import Call, Message


@dataclass(frozen=True)
class Builtin:
    """The tool loop."""

    chat: Chat
    max_turns: int
    system_prompt: str | None = None
    """Replaces the environment's system prompt. None keeps it."""

    async def play(self, context: EpisodeContext) -> AgentResult:
        """Play one episode, from the environment's first messages to the model's last.

        Raises:
            AgentError: the model's chat template cannot continue from what the model said.
        """
        messages = context.messages
        messages += opening(context.first, self.system_prompt)
        for _ in range(self.max_turns):
            try:
                completion = await self.chat.chat(context.session, Ask(list(messages), list(context.tools)))
            except NoTokensLeftError as full:
                return AgentResult(truncated=True, why=str(full))
            except RenderError as error:
                if not context.session.turns:
                    raise  # the environment wrote the conversation: the model has said nothing yet
                # Some templates refuse a tool's answer without a call, which follows a call that could not be
                # read. If such episodes were dropped, the model could not learn from its mistakes.
                raise AgentError(str(error)) from error
            messages.append(completion.message)
            if completion.finish_reason == "length":
                return AgentResult(truncated=True, why=context.session.cut)
            if not completion.calls:
                return AgentResult(truncated=False)
            observations, done = await _observe(context.sandbox, completion)
            messages += observations
            if done:
                return AgentResult(truncated=False)
        return AgentResult(truncated=True, why=f"no answer within {self.max_turns} turns")


async def _observe(sandbox: Tools, completion: Completion) -> tuple[list[Message], bool]:
    """Answer every attempted call in order. Stop at the first that ends the episode."""
    observations: list[Message] = []
    for call in completion.calls:
        content, done = await _answer(sandbox, call)
        observation: Message = {"role": "tool", "tool_call_id": call.id, "content": content}
        observations.append(observation | ({"name": call.name} if call.name else {}))
        if done:
            return observations, True
    return observations, False


async def _answer(sandbox: Tools, call: Call) -> tuple[str, bool]:
    if call.problem is not None or call.name is None or call.arguments is None:
        return f"error: the tool call could not be read ({call.problem}); write it as specified", False
    reply = await sandbox.tool(call.name, call.arguments)
    return reply.content, reply.done
