"""One open rollout on a running gateway, and a client that uses its HTTP API as an agent does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web
from scripted_model import ANSWER, ScriptedModel

from headway_api.records import EpisodeRecord, Outcome, Purpose
from headway_api.sandbox_api import ToolReply
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.backends import of_servers
from headway_coordinator.episode import Ending, EpisodeProgress, Task, seal
from headway_coordinator.gateway.asks import Sampling, Session
from headway_coordinator.gateway.rollouts import Rollout
from headway_coordinator.gateway.server import GatewayServer
from headway_coordinator.gateway.turns import Backend, TurnLimiter
from headway_coordinator.trajectory.render import choose

ARN = "arn:headway:rltrainingjob::tests:job/uid"
USER = {"role": "user", "content": "What is x?"}
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


class Gold:
    """The sandbox's tools."""

    fault: Exception | None = None

    async def tool(self, name: str, arguments: dict[str, Any]) -> ToolReply:
        if self.fault is not None:
            raise self.fault
        return ToolReply(content=f"{name} of {json.dumps(arguments)} is gold", done=name == "end")


@dataclass
class Rig:
    """One open rollout, and a client."""

    server: GatewayServer
    backend: Backend
    rollout: Rollout
    model: ScriptedModel
    http: aiohttp.ClientSession
    url: str

    async def post(self, path: str, body: object, **options: Any) -> tuple[int, Any]:
        async with self.http.post(self.base + path, data=json.dumps(body), **options) as answer:
            return answer.status, await answer.json()

    async def chat(self, *messages: Any, **fields: Any) -> tuple[int, Any]:
        return await self.post("/v1/chat/completions", {"messages": list(messages) or [USER]} | fields)

    @property
    def base(self) -> str:
        return f"{self.url}/e/{self.rollout.token}"


@asynccontextmanager
async def rig(
    tok: Any, *texts: str, context: int = 1000, limit: int = 8, around: Any = None
) -> AsyncIterator[Rig]:
    """Run a gateway with one open rollout. `around`: a middleware outside the gateway's own."""
    async with AsyncExitStack() as stack:
        model = ScriptedModel(tok, texts or [ANSWER])
        places = TurnLimiter(AdaptiveSemaphore(limit))
        backend = of_servers(choose(tok, "qwen3"), model, context, 5.0, places)
        gateway = GatewayServer()
        app = gateway.app()
        if around is not None:
            app.middlewares.insert(0, around)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        http = await stack.enter_async_context(aiohttp.ClientSession())
        one = await stack.enter_async_context(gateway.open(a_rollout(), backend))
        yield Rig(gateway, backend, one, model, http, f"http://127.0.0.1:{runner.addresses[0][1]}")


def a_rollout(episode: str = "t0-000001-0-0", *, lenient: bool = False) -> Rollout:
    return Rollout(
        lenient=lenient,
        session=Session(episode_id=episode, seed=3, sampling=Sampling(1.0, 1.0, 64)),
        job_arn=ARN,
        sandbox=Gold(),
        tools=TOOLS,
        reward_range=(0.0, 1.0),
        takes_reward=True,
        expires_at=time.monotonic() + 60,
    )


def sealed(rollout: Rollout) -> EpisodeRecord:
    """The episode's record. Asserts that it survives being written and read as JSON."""
    session = rollout.session
    group, index, attempt = session.episode_id.rsplit("-", 2)
    task = Task(group, Purpose.TRAIN, int(index), int(attempt), {}, 11, 12, session.sampling)
    progress = EpisodeProgress(session=session, started_at=1.0, messages=rollout.conversation)
    record = seal(task, progress, Ending(Outcome.INFRA_ERROR, "the test ends it"))
    assert EpisodeRecord.model_validate_json(record.model_dump_json()) == record
    return record


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)
