"""An agent that runs as a service. By MTRL's protocol it receives the prompt, and then calls the gateway.

    post the prompt ...... until the agent takes it: an agent that restarts gets the prompt again
    wait ................. for complete-rollout, and for the reward if the agent reports one
    watch ................ an agent that took the prompt and falls silent has lost it: a fault of the platform

The answer to the post only means that the prompt is taken. So agents may give it at once or at the end of
their work. An agent is not silent while the post's connection is open or one of the agent's calls runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

import aiohttp

from headway_api import logs
from headway_api.backoff import doubled
from headway_coordinator.agents.agent import AgentResult, EpisodeContext
from headway_coordinator.agents.remote import RemoteAgentHost, failed, played
from headway_coordinator.faults import AgentError, InfraError
from headway_coordinator.gateway.rollouts import Rollout, Status
from headway_coordinator.http import PeerUnreachableError, UpstreamError, call

REWARD_SECONDS = 60.0
"""The longest wait for the reward of a completed rollout."""
BROKEN_SECONDS = 15.0
"""The longest silence after the connection of an open post broke. The agent's process is probably gone
then."""
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.25, 5.0
"""The pause between two posts of the prompt, doubled each time."""
END_SECONDS = 2.0
"""The longest silence after an agent answered its post with an error, before that error is final."""
LOOK_SECONDS = 0.25
MESSAGE_LENGTH = 1000
"""The most characters that are kept of an agent's error message."""
GATEWAY_TIMEOUT = 504
RETRIABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, GATEWAY_TIMEOUT})
"""Statuses of an agent that cannot take the prompt now. Any other refusal is final."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Taken:
    """The result of posting a prompt."""

    patience: float
    """The longest silence from now on, in seconds."""
    broke: bool = False
    """Whether the connection broke after the agent had begun."""
    failure: str | None = None
    """The agent's error, if it reported that its work failed."""


@dataclass(frozen=True)
class HttpAgent:
    """The user's service."""

    http: aiohttp.ClientSession
    host: RemoteAgentHost
    url: str
    idle_seconds: float
    reports_reward: bool

    async def play(self, context: EpisodeContext) -> AgentResult:
        """Have the service play the episode, and wait for its end."""
        async with self.host.open(context, takes_reward=self.reports_reward) as rollout:
            work = asyncio.create_task(self._watched(context, rollout))
            reported = asyncio.create_task(self._reported_result(rollout))
            try:
                await asyncio.wait({work, reported}, return_when=asyncio.FIRST_COMPLETED)
                return reported.result() if reported.done() else work.result()
            finally:
                work.cancel()
                reported.cancel()
                await asyncio.gather(work, reported, return_exceptions=True)
                context.messages[:] = rollout.conversation

    async def _reported_result(self, rollout: Rollout) -> AgentResult:
        """The agent's result, once the agent has reported that it is done."""
        await rollout.until(Status.READY, Status.REWARD_RECEIVED, Status.FAILED)
        if rollout.status is Status.FAILED:
            return failed(rollout, rollout.error or "the agent completed its rollout as failed")
        if self.reports_reward:
            try:
                async with asyncio.timeout(REWARD_SECONDS):
                    await rollout.until(Status.REWARD_RECEIVED)
            except TimeoutError as error:
                raise InfraError(_without_reward(rollout)) from error
        return played(rollout)

    async def _watched(self, context: EpisodeContext, rollout: Rollout) -> AgentResult:
        """Post the prompt and watch the agent.

        Ends once the agent must have lost the prompt, or has reported a failure.

        Raises:
            AgentError: the agent failed.
            InfraError: the agent lost the prompt, or failed because of the platform.
        """
        taken = await self._deliver(context, rollout)
        since = time.monotonic()
        while True:
            # Once the agent has said that it is done, `REWARD_SECONDS` bounds the wait for its reward.
            busy = rollout.calls or rollout.status is not Status.PENDING
            silent = 0.0 if busy else time.monotonic() - max(since, rollout.called_at)
            if silent > taken.patience:
                if taken.failure is not None:
                    return failed(rollout, taken.failure)
                raise InfraError(self._silence(rollout, taken, silent))
            await asyncio.sleep(LOOK_SECONDS)

    def _silence(self, rollout: Rollout, taken: _Taken, seconds: float) -> str:
        message = (
            f"{self.url} took the prompt of {rollout.trajectory_id} and has been silent for {seconds:.0f} s"
        )
        if taken.broke:
            return f"{message}, since its connection broke"
        if not rollout.begun:
            return (
                f"{message}: it never called {self.host.base_url}; let it reach that address "
                "(spec.agent.http.callbackUrl), or raise idleSeconds if its first turn takes long"
            )
        return f"{message}; raise spec.agent.http.idleSeconds if it takes longer between calls"

    async def _deliver(self, context: EpisodeContext, rollout: Rollout) -> _Taken:
        """Post the prompt until it is taken.

        Each post names a new address of the gateway. If an earlier post has arrived after all, the agent may
        run twice. The gateway then serves only the run that calls first.

        Raises:
            AgentError: the agent refuses this prompt.
        """
        failures = 0
        while True:
            document = self.host.document(context, rollout)
            try:
                answer = await call(self.http, "POST", self.url, timeout=self.host.seconds, body=document)
                if isinstance(answer, dict) and (kind := answer.get("errorType")):
                    return self._ended(rollout, f"{self.url}: {kind}: {answer.get('errorMessage')}")
                return _Taken(self.idle_seconds)
            except UpstreamError as error:
                # A timeout of a proxy in between says nothing about the agent.
                if rollout.begun:
                    slow = error.status == GATEWAY_TIMEOUT
                    return _Taken(self.idle_seconds) if slow else self._ended(rollout, str(error))
                if error.status not in RETRIABLE_STATUSES:
                    raise AgentError(rollout.redacted(str(error))) from error
                problem: Exception = error
            except PeerUnreachableError as error:
                if rollout.begun:
                    return _Taken(min(self.idle_seconds, BROKEN_SECONDS), broke=True)
                if error.answered:
                    return _Taken(self.idle_seconds)
                problem = error
            message = rollout.redacted(str(problem))[:MESSAGE_LENGTH]
            failures += 1
            pause = doubled(failures, FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS)
            logs.event(_log, "agent-unreachable", level=logging.WARNING, error=message, pause=pause)
            await asyncio.sleep(pause)
            if not self.host.server.renew(rollout):
                return _Taken(self.idle_seconds)  # an earlier post had arrived

    def _ended(self, rollout: Rollout, failure: str) -> _Taken:
        """The result of a post that the agent answered with an error. Its last calls may still arrive."""
        message = rollout.redacted(failure)[:MESSAGE_LENGTH]
        return _Taken(min(self.idle_seconds, END_SECONDS), failure=message)


def _without_reward(rollout: Rollout) -> str:
    sent = f"{REWARD_SECONDS:g} s after the agent completed its rollout"
    if rollout.refused is not None:
        return f"no valid reward {sent}; the reward it sent was refused: {rollout.refused}"
    return f"no reward {sent}; send one with /update-reward, or set spec.agent.http.reportsReward to false"
