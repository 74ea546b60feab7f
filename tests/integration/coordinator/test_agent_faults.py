"""Users' agents when something fails: clients that time out, killed agents, full or missing servers.

Each agent is a process with its own libraries, as in `test_conformance.py`.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from gateway_rig import token_truth
from guest_stage import Agents, play, stage, until
from scripted_model import ANSWER, CALL

from headway_api.records import Outcome
from headway_coordinator.faults import InfraError
from headway_coordinator.gateway import turns

pytestmark = [pytest.mark.integration, pytest.mark.ci, pytest.mark.timeout(600)]


@pytest.mark.parametrize("style", ["create", "events"])
async def test_a_client_that_loses_patience_gets_the_same_turn(
    tok: Any, agents: Agents, tmp_path: Path, style: str
) -> None:
    service = agents.get("openai_agent")
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        rig.model.gate.clear()
        agent = rig.http_agent(f"{service.url}/at-once")
        playing = asyncio.create_task(play(rig, leases, agent, style=style, patience=0.4, retries=9))
        await until(lambda: len(rig.statuses("/v1/chat/completions")) >= 2)
        assert rig.statuses("/v1/chat/completions")[:2] == [0, 0], "it left twice"
        rig.model.gate.set()
        record = await playing
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    assert len(rig.model.requests) == 2
    token_truth(rig, record)


async def test_a_client_retries_a_full_gateway_after_retry_after(
    tok: Any, agents: Agents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "RETRY_AFTER_SECONDS", 5)
    service = agents.get("openai_agent")
    async with stage(tok, tmp_path, ANSWER) as (rig, leases):
        rig.model.gate.clear()
        agent = rig.http_agent(f"{service.url}/at-once")
        playing = asyncio.create_task(play(rig, leases, agent, crowd=turns.AT_ONCE + 2))
        await until(lambda: len(rig.statuses("/v1/chat/completions")) >= 2)
        assert rig.statuses("/v1/chat/completions")[:2] == [429, 429]
        rig.model.gate.set()
        record = await playing
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    assert len(record.turns) == turns.AT_ONCE + 2 + 1
    assert len(record.rows) == len(record.turns)
    refused = [one.at for one in rig.answered if one.status == 429][:2]
    came_back = [one.at for one in rig.answered if one.retries == 1]
    assert len(came_back) == 2
    assert min(came_back) - max(refused) > 4  # without the header its first pause is half a second


@pytest.mark.parametrize("during", ["its own work", "a turn"])
async def test_an_agent_killed_mid_episode_loses_it_and_a_retry_works(
    tok: Any, agents: Agents, tmp_path: Path, during: str
) -> None:
    service = agents.fresh("openai_agent")
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        agent = rig.http_agent(f"{service.url}/at-once", idle_seconds=6.0)
        own_work = during == "its own work"
        playing = asyncio.create_task(play(rig, leases, agent, between=60.0 if own_work else 1.0))
        ended: list[float] = []
        playing.add_done_callback(lambda task: ended.append(time.monotonic()))
        await until(lambda: rig.statuses("/v1/chat/completions") == [200])
        if not own_work:
            rig.model.gate.clear()
            await until(lambda: len(rig.model.requests) == 2)
        service.kill()
        killed = time.monotonic()
        await asyncio.to_thread(service.start)
        lost = await playing
        rig.model.gate.set()
        again = await play(rig, leases, agent, attempt=1)
    assert (lost.outcome, lost.reward) == (Outcome.INFRA_ERROR, None)
    assert "has been silent for" in str(lost.error)
    assert ended[0] - killed < 6.0 + 20.0
    token_truth(rig, lost)
    assert (again.outcome, again.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    token_truth(rig, again)


async def test_a_broken_connection_shows_a_killed_agent_earlier(
    tok: Any, agents: Agents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway_coordinator.agents.http.BROKEN_SECONDS", 0.5)
    service = agents.fresh("openai_agent")
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        agent = rig.http_agent(f"{service.url}/at-end", idle_seconds=60.0)
        playing = asyncio.create_task(play(rig, leases, agent, between=60.0))
        await until(lambda: rig.statuses("/v1/chat/completions") == [200])
        service.kill()
        lost = await asyncio.wait_for(playing, 30.0)
    assert lost.outcome is Outcome.INFRA_ERROR
    assert "since its connection broke" in str(lost.error)


async def test_an_agent_killed_before_it_began_gets_the_prompt_again(
    tok: Any, agents: Agents, tmp_path: Path
) -> None:
    service = agents.fresh("openai_agent")
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        agent = rig.http_agent(f"{service.url}/at-end")
        playing = asyncio.create_task(play(rig, leases, agent, wait=2.0))
        await until(lambda: "rollout taken" in service.log)
        service.kill()
        assert rig.answered == []
        await asyncio.sleep(0.5)  # the next prompt gets no answer
        await asyncio.to_thread(service.start)
        record = await playing
    assert (record.outcome, record.reward, record.attempt) == (Outcome.COMPLETED, 1.0, 0), service.log[-3000:]
    assert all(one.status == 200 for one in rig.answered)
    token_truth(rig, record)


async def test_a_missing_agent_is_waited_for(tok: Any, agents: Agents, tmp_path: Path) -> None:
    service = agents.fresh("openai_agent")
    service.kill()
    async with stage(tok, tmp_path, ANSWER) as (rig, leases):
        playing = asyncio.create_task(play(rig, leases, rig.http_agent(f"{service.url}/at-once")))
        await asyncio.sleep(1.0)
        await asyncio.to_thread(service.start)
        record = await playing
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]


@pytest.mark.parametrize(
    ("program", "row"),
    [
        ("strands_agent", {"style": "stream"}),
        ("openai_agent", {"style": "events"}),
    ],
    ids=str,
)
async def test_a_waiting_stream_sends_signs_of_life(
    tok: Any, agents: Agents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, row: Any
) -> None:
    """The gateway sends comments, which no client shows its agent, for longer than an agent may be silent."""
    monkeypatch.setattr("headway_coordinator.gateway.server.KEEP_ALIVE_SECONDS", 0.1)
    service = agents.get(program)
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        rig.model.gate.clear()
        # A busy machine takes seconds to bring the agent's first request.
        agent = rig.http_agent(f"{service.url}/at-once", idle_seconds=10.0)
        # The client's timeout applies to each chunk of the answer.
        playing = asyncio.create_task(play(rig, leases, agent, patience=2.0, **row))
        await until(lambda: len(rig.model.requests) == 1)
        await asyncio.sleep(11.0)
        rig.model.gate.set()
        record = await playing
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 1.0), service.log[-3000:]
    assert rig.statuses("/v1/chat/completions") == [200, 200]
    token_truth(rig, record)


@pytest.mark.parametrize(
    ("program", "row"),
    [
        ("sagemaker_agent", {"style": "handler"}),
        ("strands_agent", {"style": "stream"}),
        ("openai_agent", {"style": "events", "retries": 0}),
        ("openai_agent", {"retries": 1}),
    ],
    ids=str,
)
async def test_an_engine_that_fails_is_not_the_agents_fault(
    tok: Any, agents: Agents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, row: Any
) -> None:
    """In the middle of a stream it is too late for a status code, so the error is an event of the stream."""
    monkeypatch.setattr("headway_coordinator.gateway.server.KEEP_ALIVE_SECONDS", 0.1)
    service = agents.get(program)
    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):
        rig.model.gate.clear()
        playing = asyncio.create_task(play(rig, leases, rig.http_agent(f"{service.url}/at-once"), **row))
        await until(lambda: len(rig.model.requests) == 1)
        await asyncio.sleep(0.3)
        rig.model.fault = InfraError("no server is left")
        rig.model.gate.set()
        record = await playing
    assert (record.outcome, record.reward, record.rows) == (Outcome.INFRA_ERROR, None, [])
    assert "no server is left" in str(record.error)
    assert rig.statuses("/complete-rollout") == [200]
