"""One gateway server serves several candidates: each rollout's turns go to its own candidate."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from endpoint_service import asking, says, serving
from gateway_rig import gateway_rig
from open_rollout import TOOLS, USER, a_rollout, rig, until
from scripted_model import ANSWER, ScriptedModel
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

from headway_api.config import EvalConfig
from headway_api.records import Purpose
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.agents.agent import EpisodeContext
from headway_coordinator.agents.builtin import Builtin
from headway_coordinator.agents.choice import addresses_of, agent_of, job_arn
from headway_coordinator.agents.http import HttpAgent
from headway_coordinator.faults import CandidateError
from headway_coordinator.gateway.asks import Ask, Completion, Sampling, Session
from headway_coordinator.gateway.core import Gateway
from headway_coordinator.gateway.server import GatewayServer
from headway_coordinator.gateway.turns import Backend, TurnLimiter
from headway_coordinator.trajectory.linearize import linearize
from headway_coordinator.trajectory.render import choose


@pytest.fixture
def tok(tmp_path: Path) -> Any:
    return tokenizer(tmp_path, QWEN3_TEMPLATE)


def backend(chat: Any) -> Backend:
    return Backend(chat, TurnLimiter(AdaptiveSemaphore(4)))


class Gone:
    """A candidate whose endpoint refuses it permanently."""

    async def chat(self, session: Session, ask: Ask) -> Completion:
        raise CandidateError("EndpointDenied", "the token is not taken", "spec.candidates[x].endpoint")


async def test_each_rollout_is_answered_by_its_own_candidate(tok: Any) -> None:
    second = backend(
        Gateway(choose(tok, "qwen3"), ScriptedModel(tok, ["of the second<|im_end|>"]), 1000, 5.0)
    )
    async with rig(tok) as r, r.server.open(a_rollout("e-second-000000-0-0"), second) as other:

        async def ask(token: str) -> str:
            body = {"messages": [USER]}
            async with r.http.post(f"{r.url}/e/{token}/v1/chat/completions", json=body) as answer:
                return str((await answer.json())["choices"][0]["message"]["content"])

        mine, theirs = await asyncio.gather(ask(r.rollout.token), ask(other.token))
    assert (mine, theirs) == ("It is gold.", "of the second")


async def test_an_endpoint_answers_the_agent_of_a_service(tok: Any) -> None:
    """Two turns reach the agent.

    The client leaves before the third is answered: that turn is billed, but not judged.
    """
    hold = asyncio.Event()

    async def slow(request: web.Request, body: Any) -> web.StreamResponse:
        await hold.wait()
        return await says("late")(request, body)

    answers = [says("", ("look_up", '{"key": "x"}')), says("It is gold."), slow]
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(serving(*answers))
        chat = await stack.enter_async_context(asking(service.url))
        r = await stack.enter_async_context(rig(tok))
        other = await stack.enter_async_context(r.server.open(a_rollout("e-other-000000-0-0"), backend(chat)))
        url = f"{r.url}/e/{other.token}/v1/chat/completions"

        async def ask(*messages: Any) -> Any:
            body = {"messages": [USER, *messages], "tools": TOOLS}
            async with r.http.post(url, json=body) as answer:
                return await answer.json()

        called = (await ask())["choices"][0]
        assert called["finish_reason"] == "tool_calls"
        identity = called["message"]["tool_calls"][0]["id"]
        result = {"role": "tool", "tool_call_id": identity, "content": "gold"}
        answered = await ask(called["message"], result)
        leaving = asyncio.create_task(ask({"role": "user", "content": "And y?"}))
        await until(lambda: len(service.bodies) == 3)
        leaving.cancel()
        hold.set()
        await until(lambda: len(other.session.turns) == 3)
        session = other.session
    assert answered["usage"]["prompt_tokens"] == 20
    assert [turn.delivered for turn in session.record] == [True, True, False]
    assert session.taken == 2
    assert linearize(session.graph, session.unseen) == []


async def test_a_full_candidate_does_not_block_the_others(tok: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway_coordinator.gateway.turns.QUEUE_SECONDS", 0.1)
    full = backend(Gone())
    for _ in range(4):
        await full.places._limiter.__aenter__()
    async with rig(tok) as r, r.server.open(a_rollout("e-full-000000-0-0"), full) as other:
        url = f"{r.url}/e/{other.token}/v1/chat/completions"
        async with r.http.post(url, json={"messages": [USER]}) as answer:
            assert answer.status == 429
        assert (await r.chat())[0] == 200


async def test_the_agents_service_gets_the_error_that_ends_a_candidate(tok: Any) -> None:
    """The service still runs when its model fails. The episode ends without waiting for the service."""
    statuses: list[int] = []

    async def work(request: web.Request) -> web.StreamResponse:
        endpoint = (await request.json())["metadata"]["endpoint"]
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{endpoint}/v1/chat/completions", json={"messages": [USER]}) as answer,
        ):
            statuses.append(answer.status)
        await asyncio.sleep(60)
        return web.json_response({})

    app = web.Application()
    app.router.add_post("/", work)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with gateway_rig(tok, ANSWER) as r:
            r.backend = backend(Gone())
            agent = r.http_agent(f"http://127.0.0.1:{runner.addresses[0][1]}/")
            session = Session(episode_id="e-x-000000-0-0", seed=1, sampling=Sampling(1.0, 1.0, 50))
            stage = EpisodeContext(session, None, Purpose.EVALUATION, {"prompt": "p"}, [], [])  # type: ignore[arg-type]
            async with asyncio.timeout(30):
                with pytest.raises(CandidateError, match="the token is not taken"):
                    await agent.play(stage)
    finally:
        await runner.cleanup()
    assert statuses == [502]


def eval_config(**agent: Any) -> EvalConfig:
    spec = {
        "candidates": [{"name": "x", "endpoint": {"url": "http://x/v1", "model": "m"}}],
        "data": {"uri": "s3://b/rows.jsonl", "promptColumn": "question"},
        "environment": {"image": "environment", "entrypoint": "environment:Environment"},
        "output": {"uri": "s3://b/out"},
        "agent": agent,
    }
    return EvalConfig.model_validate(
        {"name": "judge", "namespace": "ns", "uid": "u", "kind": "RLEvalJob", "spec": spec, "candidates": []}
    )


async def test_an_evaluation_has_an_agent_for_each_candidate() -> None:
    job, one = eval_config(builtin={"maxTurns": 3}), backend(Gone())
    at = addresses_of(job, "10.0.0.1")
    async with aiohttp.ClientSession() as http:
        loop = agent_of(job, one, GatewayServer(), at, http)
        assert isinstance(loop, Builtin)
        assert (loop.chat, loop.max_turns) == (one.chat, 3)
        job = eval_config(http={"url": "http://agent/"})
        service = agent_of(job, one, GatewayServer(), at, http)
    assert isinstance(service, HttpAgent)
    assert service.host.backend is one
    assert service.host.base_url == "http://judge-eval-coordinator.ns.svc:8110"
    assert service.host.prompt(Purpose.EVALUATION, {"prompt": "no", "question": "yes"}) == "yes"
    assert job_arn(job) == service.host.job_arn == "arn:headway:rlevaljob::ns:judge/u"
