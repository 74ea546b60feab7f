"""The platform's side of an http agent: when it considers a prompt delivered, and what silence means."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from faulty_servers import Fault, Scripted, drop, fail, first, say, serving
from gateway_rig import token_truth
from guest_stage import play, stage
from scripted_model import ANSWER, CALL

from headway_api.records import Outcome

pytestmark = [pytest.mark.integration]


async def not_json(request: web.Request) -> web.Response:
    return web.Response(text="OK")


@pytest.mark.parametrize(
    "fault", [fail(400, "NoSuchCase"), say({"errorType": "NoSuchCase", "errorMessage": "which one?"})]
)
async def test_a_service_may_refuse_its_prompt(tok: Any, tmp_path: Path, fault: Fault) -> None:
    """The refusal is final, and is in the episode's record. The model did nothing that could be scored."""
    service = Scripted({}, {"POST /": fault})
    async with stage(tok, tmp_path, ANSWER) as (rig, leases), serving(service):
        agent = rig.http_agent(f"{service.url}/")
        record = await play(rig, leases, agent)
    assert (record.outcome, record.reward) == (Outcome.INFRA_ERROR, None)
    assert "NoSuchCase" in str(record.error)
    assert service.count("POST /") == 1


@pytest.mark.parametrize(
    ("fault", "asked"), [(not_json, 1), (first(2, fail(503)), 3), (first(2, drop), 3), (None, 1)]
)
async def test_a_service_silent_after_its_prompt_loses_the_episode(
    tok: Any, tmp_path: Path, fault: Fault | None, asked: int
) -> None:
    """This holds whatever the service answered. A prompt that it did not accept is sent again."""
    service = Scripted({"POST /": lambda body: {}}, {"POST /": fault} if fault else {})
    async with stage(tok, tmp_path, ANSWER) as (rig, leases), serving(service):
        agent = rig.http_agent(f"{service.url}/", idle_seconds=0.5)
        record = await play(rig, leases, agent)
    assert (record.outcome, record.reward) == (Outcome.INFRA_ERROR, None)
    assert "has been silent for" in str(record.error)
    assert service.count("POST /") == asked


async def test_a_service_may_compute_its_reward_beyond_the_idle_limit(tok: Any, tmp_path: Path) -> None:
    work: list[asyncio.Task[None]] = []

    async with stage(tok, tmp_path, ANSWER) as (rig, leases):

        async def act(payload: dict[str, Any]) -> None:
            endpoint = payload["metadata"]["endpoint"]
            turn = {"messages": [{"role": "user", "content": payload["prompt"]}]}
            await rig.http.post(f"{endpoint}/v1/chat/completions", json=turn)
            await rig.http.post(f"{endpoint}/complete-rollout", json={"Status": "ready"})
            await asyncio.sleep(6.0)
            await rig.http.post(f"{endpoint}/update-reward", json={"Rewards": [0.5]})

        def take(payload: dict[str, Any]) -> dict[str, Any]:
            work.append(asyncio.create_task(act(payload)))
            return {}

        async with serving(Scripted({"POST /": take})) as service:
            agent = rig.http_agent(f"{service.url}/", idle_seconds=5.0)
            record = await play(rig, leases, agent)
            await asyncio.gather(*work)
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 0.5)
    assert rig.statuses("/update-reward") == [200]


async def test_a_prompt_that_arrived_twice_is_played_once(tok: Any, tmp_path: Path) -> None:
    """The prompt arrives, and then the connection breaks before the answer: two runs act at once."""
    second_done = asyncio.Event()
    ends: list[list[int]] = []
    work: list[asyncio.Task[None]] = []

    async with stage(tok, tmp_path, CALL, ANSWER) as (rig, leases):

        async def act(payload: dict[str, Any], second: bool) -> None:
            endpoint, seen = payload["metadata"]["endpoint"], []
            ends.append(seen)
            turn = {"messages": [{"role": "user", "content": payload["prompt"]}]}
            if not second:
                await second_done.wait()
            for path, body in (
                ("/v1/chat/completions", turn),
                ("/complete-rollout", {"Status": "ready"}),
                ("/update-reward", {"Rewards": [0.5]}),
            ):
                async with rig.http.post(endpoint + path, json=body) as answer:
                    seen.append(answer.status)
            second_done.set()

        async def take(request: web.Request) -> web.StreamResponse | None:
            again = bool(work)
            work.append(asyncio.create_task(act(await request.json(), again)))
            return None if again else await drop(request)

        async with serving(Scripted({"POST /": lambda body: {}}, {"POST /": take})) as service:
            agent = rig.http_agent(f"{service.url}/")
            record = await play(rig, leases, agent)
            await asyncio.gather(*work)
    assert record.outcome is Outcome.COMPLETED
    assert len(record.turns) == 1
    assert sorted(ends) == [[200, 200, 200], [409, 409, 409]]
    token_truth(rig, record)


async def test_a_timeout_of_an_ingress_does_not_fail_the_agent(
    tok: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ingress answers 504 for an agent that still works, and whose own answer would come at its end."""
    monkeypatch.setattr("headway_coordinator.agents.http.BROKEN_SECONDS", 0.3)

    async with stage(tok, tmp_path, ANSWER) as (rig, leases):
        work: list[asyncio.Task[None]] = []

        async def finish(endpoint: str) -> None:
            await asyncio.sleep(1.0)
            await rig.http.post(f"{endpoint}/complete-rollout", json={"Status": "ready"})
            await rig.http.post(f"{endpoint}/update-reward", json={"Rewards": [0.5]})

        async def take(request: web.Request) -> web.StreamResponse:
            payload = await request.json()
            endpoint = payload["metadata"]["endpoint"]
            turn = {"messages": [{"role": "user", "content": payload["prompt"]}]}
            await rig.http.post(f"{endpoint}/v1/chat/completions", json=turn)
            work.append(asyncio.create_task(finish(endpoint)))
            return web.Response(status=504)

        async with serving(Scripted({}, {"POST /": take})) as service:
            agent = rig.http_agent(f"{service.url}/", idle_seconds=10.0)
            record = await play(rig, leases, agent)
            await asyncio.gather(*work)
    assert (record.outcome, record.reward) == (Outcome.COMPLETED, 0.5)
