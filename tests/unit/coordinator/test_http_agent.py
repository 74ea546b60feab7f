"""What an agent's service may do after it gets a prompt, and whose fault the platform considers it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from gateway_rig import GatewayRig, gateway_rig
from scripted_model import ANSWER
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_api.records import Purpose
from headway_coordinator.agents import http as agents
from headway_coordinator.agents.agent import AgentResult, EpisodeContext
from headway_coordinator.faults import AgentError, InfraError
from headway_coordinator.gateway.asks import Sampling, Session
from headway_coordinator.http import UpstreamError, call
from headway_coordinator.trajectory.linearize import linearize

Work = Callable[[str], Awaitable[web.StreamResponse]]
USER = {"role": "user", "content": "What is x?"}


@dataclass
class Scene:
    """A service whose behaviour a test defines, and the agent that posts prompts to it."""

    rig: GatewayRig
    url: str
    posted: list[dict[str, Any]]
    sessions: list[Session] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)

    async def play(self, **settings: Any) -> AgentResult:
        agent = self.rig.http_agent(self.url, **settings)
        session = Session(episode_id="t0-000000-0-0", seed=1, sampling=Sampling(1.0, 1.0, 50))
        self.sessions.append(session)
        stage = EpisodeContext(session, None, Purpose.TRAIN, {"prompt": "p"}, [], [], self.messages)  # type: ignore[arg-type]
        return await agent.play(stage)


@asynccontextmanager
async def scene(tmp_path: Path, work: Work, context: int = 4000) -> AsyncIterator[Scene]:
    posted: list[dict[str, Any]] = []

    async def post(request: web.Request) -> web.StreamResponse:
        posted.append(await request.json())
        return await work(posted[-1]["metadata"]["endpoint"])

    async with AsyncExitStack() as stack:
        tok = tokenizer(tmp_path, QWEN3_TEMPLATE)
        rig = await stack.enter_async_context(gateway_rig(tok, ANSWER, context=context))
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", post)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield Scene(rig, f"http://127.0.0.1:{runner.addresses[0][1]}/", posted)


async def turn(endpoint: str, text: str = "What is x?") -> int:
    """Ask for one turn. Returns the HTTP status."""
    body = {"messages": [{"role": "user", "content": text}]}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{endpoint}/v1/chat/completions", json=body) as answer,
    ):
        return answer.status


async def left(rig: GatewayRig, endpoint: str, text: str = "What is x?") -> None:
    """Ask for one turn, and leave while it is sampled."""
    before, gone = len(rig.model.requests), len(rig.answered)
    asked = asyncio.create_task(turn(endpoint, text))
    async with asyncio.timeout(30):
        while len(rig.model.requests) == before:
            await asyncio.sleep(0.01)
        asked.cancel()
        while len(rig.answered) == gone:
            await asyncio.sleep(0.01)
    assert rig.answered[-1].status == 0


async def complete(endpoint: str, status: str) -> None:
    body = {"Status": status}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{endpoint}/complete-rollout", json=body) as answer,
    ):
        assert answer.status == 200


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize("body", [{"errorType": "Lost", "errorMessage": "no idea"}, {"status": "error"}])
async def test_an_error_after_its_last_turn_is_an_agent_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, body: dict[str, str]
) -> None:
    monkeypatch.setattr(agents, "END_SECONDS", 0.3)

    async def work(endpoint: str) -> web.StreamResponse:
        assert await turn(endpoint) == 200
        return web.json_response(body, status=status)

    async with scene(tmp_path, work) as s:
        with pytest.raises(AgentError, match=str(status)):
            await s.play()
    assert len(s.posted) == 1


async def test_a_full_context_truncates_whatever_the_agent_then_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "END_SECONDS", 0.3)

    async def work(endpoint: str) -> web.StreamResponse:
        assert await turn(endpoint) == 200
        assert await turn(endpoint, "word " * 200) == 400
        return web.json_response({"errorType": "BadRequestError"})

    async with scene(tmp_path, work, context=100) as s:
        played = await s.play()
    assert played.truncated
    assert "context" in str(played.why)


async def test_agent_failure_after_leaving_a_turn_is_an_infra_fault(tmp_path: Path) -> None:
    async def work(endpoint: str) -> web.StreamResponse:
        assert await turn(endpoint) == 200
        s.rig.model.gate.clear()
        await left(s.rig, endpoint, "And y?")
        await complete(endpoint, "failed")
        return web.json_response({})

    async with scene(tmp_path, work) as s:
        with pytest.raises(InfraError, match="without waiting"):
            await s.play()


async def test_an_agent_that_timed_out_and_went_on_is_judged(tmp_path: Path) -> None:
    async def work(endpoint: str) -> web.StreamResponse:
        s.rig.model.gate.clear()
        await left(s.rig, endpoint, "And y?")
        s.rig.model.gate.set()
        assert await turn(endpoint) == 200
        await complete(endpoint, "ready")
        return web.json_response({})

    async with scene(tmp_path, work) as s:
        assert await s.play(reports_reward=False) == AgentResult(truncated=False)


async def test_an_agent_that_never_calls_is_an_infra_error(tmp_path: Path) -> None:
    async def work(endpoint: str) -> web.StreamResponse:
        return web.json_response({"status": "accepted"})

    async with scene(tmp_path, work) as s:
        with pytest.raises(InfraError, match=r"never called http://127\.0\.0\.1.*callbackUrl"):
            await asyncio.wait_for(s.play(idle_seconds=0.3), 5)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed_and_its_target_is_named(tmp_path: Path, status: int) -> None:
    async def work(endpoint: str) -> web.StreamResponse:
        return web.Response(status=status, headers={"Location": "https://elsewhere.example/agent"})

    async with scene(tmp_path, work) as s:
        with pytest.raises(AgentError, match=r"redirect to https://elsewhere\.example/agent"):
            await s.play()
        async with aiohttp.ClientSession() as http:
            with pytest.raises(UpstreamError, match="redirect"):
                await call(http, "POST", s.url, timeout=5, body={"metadata": {"endpoint": ""}})
    assert len(s.posted) == 2


async def test_an_undelivered_turn_does_not_count_as_a_turn(tmp_path: Path) -> None:
    async def work(endpoint: str) -> web.StreamResponse:
        s.rig.model.gate.clear()
        await left(s.rig, endpoint)
        s.rig.model.gate.set()
        await complete(endpoint, "ready")
        return web.json_response({})

    async with scene(tmp_path, work) as s:
        await s.play(reports_reward=False)
    [session] = s.sessions
    assert session.taken == 0
    assert linearize(session.graph, session.unseen) == []
    assert s.messages == []


async def test_agent_message_is_cut_short_and_hides_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "END_SECONDS", 0.2)

    async def work(endpoint: str) -> web.StreamResponse:
        assert await turn(endpoint) == 200
        return web.json_response({"errorType": "X", "errorMessage": endpoint + "!" * 100_000})

    async with scene(tmp_path, work) as s:
        with pytest.raises(AgentError, match=r"/e/\.\.\.!") as caught:
            await s.play()
    assert len(str(caught.value)) == agents.MESSAGE_LENGTH
