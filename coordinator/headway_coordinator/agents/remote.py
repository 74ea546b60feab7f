"""What agents outside this process are given: an address of their own, the prompt, and how to sample.

The documents carry the names of every known client: SageMaker's formal API, its SDK's older form, OpenAI's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from headway_api.records import Purpose
from headway_coordinator.agents.agent import AgentResult, EpisodeContext
from headway_coordinator.faults import AgentFault, InfraFault
from headway_coordinator.gateway.rollouts import Rollout, Status
from headway_coordinator.gateway.server import GatewayServer
from headway_coordinator.gateway.turns import Backend


@dataclass(frozen=True)
class RemoteAgentHost:
    """Opens episodes to their agents."""

    server: GatewayServer
    backend: Backend
    """Who answers the turns of those episodes."""
    base_url: str
    """Where agents reach the gateway."""
    job_arn: str
    reward_range: tuple[float, float]
    seconds: float
    """How long an episode may last, and with it its token."""
    prompt: Callable[[Purpose, dict[str, Any]], str]
    """The prompt in a dataset row."""
    lenient: bool = False
    """As `Rollout.lenient`."""

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
        """Base URL of one episode."""
        return f"{self.base_url.rstrip('/')}/e/{rollout.token}"

    def document(self, context: EpisodeContext, rollout: Rollout) -> dict[str, Any]:
        """The episode as its agent is told of it."""
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
    """How a rollout whose agent is done ended.

    Raises:
        InfraFault: a fault of the platform was the last that it was told: whatever the agent made of that,
            it is not what the model is worth.
        CandidateFault: no model answers any more.
    """
    rollout.require_candidate()
    if rollout.fault is not None:
        raise InfraFault(f"the agent ended its work after a fault: {rollout.fault}", rollout.cause)
    return AgentResult(
        truncated=rollout.truncated is not None,
        why=rollout.truncated,
        reported=rollout.rewards,
        metrics=rollout.metrics,
    )


def failed(rollout: Rollout, why: str) -> AgentResult:
    """How a rollout whose agent gave up ended: whose fault it was.

    Raises:
        InfraFault: the platform had failed the agent first, or kept it waiting for longer than it would.
        AgentFault: it was the agent itself.
        CandidateFault: no model answers any more.
    """
    rollout.require_candidate()
    if rollout.fault is not None:
        raise InfraFault(f"the agent gave up ({why}) after a fault: {rollout.fault}", rollout.cause)
    if rollout.lost:
        raise InfraFault(f"the agent gave up ({why}) after it had not waited for a turn's answer")
    if rollout.truncated is not None:
        return played(rollout)
    if rollout.status is Status.REWARD_RECEIVED:  # it had finished its work, and was judged
        return played(rollout)
    raise AgentFault(why)
