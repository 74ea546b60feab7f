"""The gateway on a port of this machine, as the coordinator serves it, and whole episodes through it.

The test scripts the model's texts (`ScriptedModel`). Everything else is real.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from lease_service import LeaseService, lease_service
from ports import free_port
from role_keys import TO_BROKER
from scripted_model import ScriptedModel

from headway_api.records import EpisodeRecord, Purpose, TrainingRow
from headway_api.rows import prompt_of
from headway_api.sandbox_api import ToolReply
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.agents.agent import Agent
from headway_coordinator.agents.builtin import Builtin
from headway_coordinator.agents.http import HttpAgent
from headway_coordinator.agents.remote import RemoteAgentHost
from headway_coordinator.agents.sandboxed import SandboxedAgent
from headway_coordinator.backends import of_servers
from headway_coordinator.engines.router import Router
from headway_coordinator.episode import Episodes, Rules, Task
from headway_coordinator.gateway.asks import Sampling, Session
from headway_coordinator.gateway.rollouts import Rollout
from headway_coordinator.gateway.server import RETRIES, GatewayServer
from headway_coordinator.gateway.turns import Backend, TurnLimiter
from headway_coordinator.sandboxes import Broker
from headway_coordinator.trajectory.render import choose

ARN = "arn:headway:rltrainingjob::tests:job/uid"
MAX_TOKENS = 200


@dataclass(frozen=True)
class Answered:
    """One request of an agent to the gateway. The status is 0 if the client left before the answer."""

    method: str
    path: str
    """The path below the episode's base URL."""
    status: int
    retries: int
    """Number of retries, as the client counts them."""
    at: float
    """When the request arrived, on the monotonic clock."""


class NoTools:
    """The sandbox of an environment without tools."""

    async def tool(self, name: str, arguments: dict[str, Any]) -> ToolReply:
        raise AssertionError(name)


@dataclass
class GatewayRig:
    """A running gateway, and the scripted model behind it."""

    server: GatewayServer
    backend: Backend
    model: ScriptedModel
    http: aiohttp.ClientSession
    url: str
    answered: list[Answered] = field(default_factory=list)

    def statuses(self, path: str) -> list[int]:
        """Statuses of all requests to one path, in the order of the answers."""
        return [one.status for one in self.answered if one.path == path]

    def desk(self, lenient: bool = False) -> RemoteAgentHost:
        return RemoteAgentHost(
            lenient=lenient,
            server=self.server,
            backend=self.backend,
            base_url=self.url,
            job_arn=ARN,
            reward_range=(0.0, 1.0),
            seconds=60.0,
            prompt=lambda purpose, row: prompt_of(row, None),
        )

    def http_agent(
        self, url: str, *, idle_seconds: float = 20.0, reports_reward: bool = True, lenient: bool = False
    ) -> HttpAgent:
        return HttpAgent(self.http, self.desk(lenient), url, idle_seconds, reports_reward)

    def sandboxed_agent(self, *command: str) -> SandboxedAgent:
        return SandboxedAgent(self.desk(), command)

    def builtin_agent(self, max_turns: int = 8) -> Builtin:
        return Builtin(self.backend.chat, max_turns)

    def episodes(self, agent: Agent, leases: LeaseService, timeout: float = 40.0) -> Episodes:
        broker = Broker(self.http, leases.url, TO_BROKER, "me")
        return Episodes(Rules(timeout, 120.0, (0.0, 1.0)), agent, broker, Router())

    @asynccontextmanager
    async def rollout(self, *, takes_reward: bool = True) -> AsyncIterator[tuple[Rollout, str]]:
        """An open rollout without an agent or a sandbox, and its base URL."""
        rollout = Rollout(
            session=Session(episode_id="t0-000009-0-0", seed=3, sampling=Sampling(1.0, 1.0, MAX_TOKENS)),
            job_arn=ARN,
            sandbox=NoTools(),
            tools=[],
            reward_range=(0.0, 1.0),
            takes_reward=takes_reward,
            expires_at=math.inf,
        )
        async with self.server.open(rollout, self.backend):
            yield rollout, f"{self.url}/e/{rollout.token}"


@asynccontextmanager
async def gateway_rig(
    tok: Any, *texts: str | Exception, context: int = 4000, places: int = 32
) -> AsyncIterator[GatewayRig]:
    """A gateway whose model says `texts` in each episode."""
    model = ScriptedModel(tok, texts)
    limiter = TurnLimiter(AdaptiveSemaphore(places))
    backend = of_servers(choose(tok, "qwen3"), model, context, 30.0, limiter)
    server = GatewayServer()
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        port = _port()
        rig = GatewayRig(server, backend, model, http, f"http://127.0.0.1:{port}")
        app = server.app()
        app.middlewares.insert(0, _recording(rig))
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield rig


@asynccontextmanager
async def sandboxes(folder: Path, entrypoint: str) -> AsyncIterator[LeaseService]:
    """A broker of sandboxes with the environment `entrypoint` in `folder`."""
    async with lease_service(folder, entrypoint, TO_BROKER) as leases:
        yield leases


def a_task(row: dict[str, Any], *, index: int = 0, attempt: int = 0, max_tokens: int = MAX_TOKENS) -> Task:
    return Task(
        group_id="t0-000000",
        purpose=Purpose.TRAIN,
        index=index,
        attempt=attempt,
        row=row,
        environment_seed=11,
        sampling_seed=12,
        sampling=Sampling(1.0, 1.0, max_tokens),
    )


def token_truth(rig: GatewayRig, record: EpisodeRecord) -> TrainingRow:
    """The episode's only training row, after checks against the engine's prompts and samples.

    Every turn's prompt must begin with the prompt and the sample of the turn before. The row must consist of
    the last turn's prompt and sample, and train exactly the tokens that were sampled.
    """
    assert record.forks == 0
    spoken = rig.model.spoken[record.episode_id]
    for before, after in pairwise(spoken):
        so_far = before.prompt + before.sampled
        assert after.prompt[: len(so_far)] == so_far
        assert len(after.prompt) > len(so_far)
    [row] = record.rows
    assert row.tokens == spoken[-1].prompt + spoken[-1].sampled
    mask = [0] * len(row.tokens)
    for turn in spoken:
        start = len(turn.prompt)
        mask[start : start + len(turn.sampled)] = [1] * len(turn.sampled)
    assert row.mask == mask
    assert row.logprobs == [-0.5 if trained else 0.0 for trained in mask]
    assert [turn.sampled_tokens for turn in record.turns] == [len(turn.sampled) for turn in spoken]
    assert [turn.prompt_tokens for turn in record.turns] == [len(turn.prompt) for turn in spoken]
    return row


def _port() -> int:
    """A free port without 404 in it. SageMaker's SDK looks for 404 in error texts, which contain the URL."""
    while "404" in str(port := free_port()):
        pass
    return port


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _recording(rig: GatewayRig) -> Any:
    @web.middleware
    async def record(request: web.Request, handler: Handler) -> web.StreamResponse:
        at, status = time.monotonic(), 0
        try:
            answer = await handler(request)
            status = answer.status
            return answer
        finally:
            path = request.path.removeprefix(f"/e/{request.match_info.get('token')}")
            retries = int(request.headers.get(RETRIES, "0"))
            rig.answered.append(Answered(request.method, path, status, retries, at))

    return record
