"""What agents outside this process receive: an address of their own, the prompt, and how to sample.

The documents have the field names of every known client: SageMaker's formal API, its SDK's older form,
OpenAI's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from headway_api.records import Purpose
from headway_coordinator.agents.agent import AgentResult, EpisodeContext
from headway_coordinator.faults import AgentError, InfraError
from headway_coordinator.gateway.rollouts import Rollout, Status
from headway_coordinator.gateway.server import GatewayServer
from headway_coordinator.gateway.turns import Backend


@dataclass(frozen=True)
class RemoteAgentHost:
    """Gives the agents of episodes access to the gateway."""

    server: GatewayServer
    backend: Backend
    """Answers the turns of the agents' episodes."""
    base_url: str
    """The gateway's base URL for agents."""
    job_arn: str
    reward_range: tuple[float, float]
    seconds: float
    """The longest that an episode may take. The token for its address is valid as long."""
    prompt: Callable[[Purpose, dict[str, Any]], str]
    """Given an episode's purpose and its dataset row, returns the row's prompt."""
    lenient: bool = False
    """Whether the gateway ignores fields that it cannot apply. Otherwise it refuses the request."""

    def open(self, context: EpisodeContext, *, takes_reward: bool) -> AbstractAsyncContextManager[Rollout]:
        """The episode's rollout, open while the block lasts."""
        rollout = Rollout(
            session=context.session,
            job_arn=self.job_arn,
            sandbox=context.sandbox,
            tools=context.tools,
            reward_range=self.reward_range,
            takes_reward=takes_reward,
            expires_at=time.monotonic() + self.seconds,
            lenient=self.lenient,
        )
        context.fault = lambda: rollout.fault
        return self.server.open(rollout, self.backend)

    def endpoint(self, rollout: Rollout) -> str:
        """The gateway's base URL for one episode."""
        return f"{self.base_url.rstrip('/')}/e/{rollout.token}"

    def document(self, context: EpisodeContext, rollout: Rollout) -> dict[str, Any]:
        """The JSON document in which an agent receives its episode."""
        sampling = context.session.sampling
        return {
            "prompt": self.prompt(context.purpose, context.row),
            "instance": context.row,
            "metadata": {
                "jobArn": self.job_arn,
                "job_arn": self.job_arn,
                "rolloutId": rollout.rollout_id,
                "trajectory_id": rollout.rollout_id,
                "endpoint": self.endpoint(rollout),
            },
            "inferenceParams": {
                "temperature": sampling.temperature,
                "topP": sampling.top_p,
                "maxTokens": sampling.max_tokens,
            },
            "inference_params": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_tokens": sampling.max_tokens,
            },
        }


def played(rollout: Rollout) -> AgentResult:
    """The result of a rollout whose agent is done.

    Raises:
        InfraError: the last answer to the agent was a fault of the platform, so its result does not measure
            the model.
        CandidateError: the candidate's model answers no turn any more.
    """
    rollout.require_candidate()
    if rollout.fault is not None:
        raise InfraError(f"the agent ended its work after a fault: {rollout.fault}", rollout.cause)
    return AgentResult(
        truncated=rollout.truncated is not None,
        why=rollout.truncated,
        reported=rollout.rewards,
        metrics=rollout.metrics,
    )


def failed(rollout: Rollout, why: str) -> AgentResult:
    """The result of a rollout whose agent gave up, or an error that depends on whose fault that was.

    Raises:
        InfraError: the platform failed the agent first, or the agent did not wait for a turn's answer.
        AgentError: the agent itself was at fault.
        CandidateError: the candidate's model answers no turn any more.
    """
    rollout.require_candidate()
    if rollout.fault is not None:
        raise InfraError(f"the agent gave up ({why}) after a fault: {rollout.fault}", rollout.cause)
    if rollout.lost:
        raise InfraError(f"the agent gave up ({why}) without waiting for a turn's answer")
    if rollout.truncated is not None:
        return played(rollout)
    if rollout.status is Status.REWARD_RECEIVED:  # it had finished its work, and has a reward
        return played(rollout)
    raise AgentError(why)
