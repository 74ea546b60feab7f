"""An agent that is a program in the episode's own sandbox.

The program starts once the environment is ready. It finds its endpoint in a file, and in the environment
variables that OpenAI's and SageMaker's clients read. When the program ends, the episode ends. An exit status
other than 0 is the agent's fault, and the error quotes the program's last output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway_api.sandbox_api import AgentState
from headway_coordinator.agents.agent import AgentResult, EpisodeContext
from headway_coordinator.agents.remote import RemoteAgentHost, failed, played
from headway_coordinator.gateway.rollouts import Rollout, Status

WAIT_SECONDS = 20.0
"""Seconds of one long poll for the exit of the program."""
LAST_WORDS = 1000
"""The most characters of the program's output in an error message."""

PLACEHOLDER_AWS = {
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Credentials without any rights. SageMaker's SDK signs a token for each call, and makes no call without
credentials. The gateway ignores the token, because the address names the episode."""


@dataclass(frozen=True)
class SandboxedAgent:
    """The user's program."""

    host: RemoteAgentHost
    command: tuple[str, ...]

    async def play(self, context: EpisodeContext) -> AgentResult:
        """Run the program to its end."""
        async with self.host.open(context, takes_reward=False) as rollout:
            try:
                state = await context.sandbox.agent(
                    self.command, self._document(context, rollout), self._environment(rollout)
                )
                while state.running:
                    rollout.require_candidate()
                    state = await context.sandbox.agent_wait(WAIT_SECONDS)
            finally:
                context.messages[:] = rollout.conversation
        if state.exit_code == 0 and rollout.status is not Status.FAILED:
            return played(rollout)
        return failed(rollout, rollout.error or _last_words(state))

    def _document(self, context: EpisodeContext, rollout: Rollout) -> dict[str, Any]:
        """The JSON document that the program receives.

        It has no dataset row: the model may read the document, and the row has the answers.
        """
        document = self.host.document(context, rollout)
        del document["instance"]
        return document | {
            "base_url": f"{self.host.endpoint(rollout)}/v1",
            "api_key": rollout.token,
            "messages": list(context.first),
            "tools": list(context.tools),
        }

    def _environment(self, rollout: Rollout) -> dict[str, str]:
        endpoint = self.host.endpoint(rollout)
        return {
            "OPENAI_BASE_URL": f"{endpoint}/v1",
            "OPENAI_API_KEY": rollout.token,
            "ANTHROPIC_BASE_URL": endpoint,
            "ANTHROPIC_API_KEY": rollout.token,
            "RFT_RUNTIME_ENDPOINT": endpoint,
            **PLACEHOLDER_AWS,
        }


def _last_words(state: AgentState) -> str:
    output = state.output.strip()[-LAST_WORDS:]
    return f"the agent ended with exit status {state.exit_code}" + (f": {output}" if output else "")
