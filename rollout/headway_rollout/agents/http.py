"""An agent that runs as a service: it is sent the prompt, and calls the gateway back. MTRL's protocol.

    post the prompt ...... until it is taken: an agent that restarts is asked again
    wait ................. for complete-rollout, and for the reward where the agent reports one
    watch ................ an agent that took the prompt and falls silent has lost it: a fault of the platform

The post's answer means nothing but "taken": agents that answer at the end of their work are as welcome as
those that answer at once. While the connection stands, or a call of the agent runs, it is not silent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

import aiohttp

from headway_rollout import logs
from headway_rollout.agents.agent import Played, Stage
from headway_rollout.agents.remote import Desk, failed, played
from headway_rollout.faults import AgentFault, InfraFault
from headway_rollout.gateway.rollouts import Rollout, Status
from headway_rollout.http import Refused, Unreachable, call

REWARD_SECONDS = 60.0
"""Longest wait for the reward of a rollout that is complete."""
BROKEN_SECONDS = 15.0
"""Longest silence after the connection of an open post broke: the agent's process is probably gone."""
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.25, 5.0
"""Between two attempts to have the prompt taken: doubled each time."""
LOOK_SECONDS = 0.25
GATEWAY_TIMEOUT = 504
LATER = frozenset({408, 425, 429, 500, 502, 503, GATEWAY_TIMEOUT})
"""Statuses of an agent that cannot take the prompt now; any other refusal is its answer."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HttpAgent:
    """The user's service."""

    http: aiohttp.ClientSession
    desk: Desk
    url: str
    idle_seconds: float
    reports_reward: bool

    async def play(self, stage: Stage) -> Played:
        """Have the service act, and wait for its word."""
        async with self.desk.open(stage, takes_reward=self.reports_reward) as rollout:
            work = asyncio.create_task(self._watched(stage, rollout))
            word = asyncio.create_task(self._word(rollout))
            try:
                await asyncio.wait({work, word}, return_when=asyncio.FIRST_COMPLETED)
                return word.result() if word.done() else work.result()
            finally:
                work.cancel()
                word.cancel()
                await asyncio.gather(work, word, return_exceptions=True)
                stage.messages[:] = stage.session.conversation

    async def _word(self, rollout: Rollout) -> Played:
        """What the agent says of its end."""
        await rollout.until(Status.READY, Status.REWARD_RECEIVED, Status.FAILED)
        if rollout.status is Status.FAILED:
            return failed(rollout, rollout.error or "the agent completed its rollout as failed")
        if self.reports_reward:
            try:
                async with asyncio.timeout(REWARD_SECONDS):
                    await rollout.until(Status.REWARD_RECEIVED)
            except TimeoutError as error:
                raise InfraFault(_without_reward(rollout)) from error
        return played(rollout)

    async def _watched(self, stage: Stage, rollout: Rollout) -> Played:
        """Have the prompt taken, then raise once the agent must have lost it. Ends by no other way."""
        broken = await self._deliver(stage, rollout)
        limit = min(self.idle_seconds, BROKEN_SECONDS) if broken else self.idle_seconds
        since = time.monotonic()
        while True:
            # Once it has said that it is done, its reward has a limit of its own.
            busy = rollout.calls or rollout.status is not Status.PENDING
            silent = 0.0 if busy else time.monotonic() - max(since, rollout.called_at)
            if silent > limit:
                hint = ", since its connection broke" if broken else "; see spec.agent.http.idleSeconds"
                raise InfraFault(
                    f"{self.url} took the prompt of {rollout.trajectory_id} and has been silent for "
                    f"{silent:.0f} s{hint}"
                )
            await asyncio.sleep(LOOK_SECONDS)

    async def _deliver(self, stage: Stage, rollout: Rollout) -> bool:
        """Post the prompt until it is taken; says whether the connection broke after the agent had begun.

        Each time with another address: where an earlier one did arrive, one of the two runs acts.

        Raises:
            AgentFault: the agent refuses this prompt.
        """
        pause = FIRST_PAUSE_SECONDS
        while True:
            document = self.desk.document(stage, rollout)
            try:
                answer = await call(self.http, "POST", self.url, timeout=self.desk.seconds, body=document)
                if isinstance(answer, dict) and (kind := answer.get("errorType")):
                    return bool(failed(rollout, f"{self.url}: {kind}: {answer.get('errorMessage')}"))
                return False
            except Refused as error:
                if rollout.begun:
                    # It says how its work ended: so does the rollout's status, or nobody does. A gateway on
                    # the way that lost patience says nothing of the agent.
                    return error.status != GATEWAY_TIMEOUT
                if error.status not in LATER:
                    raise AgentFault(str(error)) from error
                problem: Exception = error
            except Unreachable as error:
                if rollout.begun:
                    return True
                if error.answered:
                    return False
                problem = error
            logs.event(_log, "agent-unreachable", level=logging.WARNING, error=str(problem), pause=pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE_SECONDS)
            if not self.desk.server.renew(rollout):
                return False  # it had arrived


def _without_reward(rollout: Rollout) -> str:
    sent = f"{REWARD_SECONDS:g} s after the agent completed its rollout"
    if rollout.refused is not None:
        return f"no reward that can be taken {sent}; the one it sent was refused: {rollout.refused}"
    return f"no reward {sent}; send one with /update-reward, or set spec.agent.http.reportsReward to false"
