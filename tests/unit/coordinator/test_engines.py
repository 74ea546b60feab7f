"""Servers that die, refuse or lie: requests go to other servers, and no unproven weights are sampled from."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from episodes import version
from faulty_servers import drop, engine, fail, first, hang, keyed
from scripted_fleet import REQUEST, a_fleet, manifest, until

from headway_api.records import VersionSpan
from headway_coordinator.engines import fleet as fleets
from headway_coordinator.engines import vllm
from headway_coordinator.faults import InfraError


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(fleets, "DISCOVER_SECONDS", 0.05)


async def test_nothing_is_sampled_before_there_are_weights() -> None:
    async with a_fleet(1) as (fleet, servers):
        asked = asyncio.create_task(fleet.generate("e", REQUEST, 5))
        await asyncio.sleep(0.3)
        assert not asked.done()
        assert "learner" in str(fleet.router.problem())
        await fleet.want(manifest(0))
        sampled = await asked
        assert sampled.tokens == [4, 9]
        assert sampled.cached_tokens == 2
        [(_, body)] = servers.engines[0].asked
        assert body["model"] == "policy-0.0"
        assert body["sampling_params"]["seed"] == 7


async def test_turns_are_requested_with_the_key_of_the_servers_port() -> None:
    async with a_fleet(1) as (fleet, servers):
        servers.engines[0].faults["POST /inference/v1/generate"] = keyed("token")
        await fleet.want(manifest(0))
        assert (await fleet.generate("e", REQUEST, 5)).tokens == [4, 9]
        servers.engines[0].faults["POST /inference/v1/generate"] = keyed("another")
        with pytest.raises(InfraError, match="Unauthorized"):
            await fleet.generate("e", REQUEST, 5)


async def test_every_server_takes_a_new_version_and_is_then_sampled() -> None:
    async with a_fleet(2) as (fleet, servers):
        for step in (0, 1):
            await fleet.want(manifest(step))
            await fleet.ready()
        await fleet.generate("e", REQUEST, 5)
        async with asyncio.timeout(5):
            while len(fleet.router.in_rotation()) < 2:
                await asyncio.sleep(0.01)
        models = {body["model"] for server in servers.engines for _, body in server.asked}
        assert models == {"policy-0.1"}
        salts = {body["cache_salt"] for server in servers.engines for _, body in server.asked}
        assert salts == {"0.1"}, "keys and values of other weights are not found in the cache"


async def test_late_server_takes_the_newest_weights_before_requests() -> None:
    async with a_fleet(2) as (fleet, servers):
        servers.gone.add(1)
        for step in (0, 1):
            await fleet.want(manifest(step))
            await fleet.ready()
        servers.gone.clear()
        await until(lambda: len(fleet.router.in_rotation()) == 2)
        taken = [body["version"] for what, body in servers.agents[1].asked if what.startswith("POST")]
        assert taken == [{"incarnation": 0, "step": 1}]


@pytest.mark.parametrize("fault", [drop, fail(500), fail(503), fail(404), hang])
async def test_a_lost_servers_request_goes_to_another_server(fault: Any) -> None:
    async with a_fleet(2) as (fleet, servers):
        await fleet.want(manifest(0))
        while len(fleet.router.in_rotation()) < 2:
            await asyncio.sleep(0.01)
        home = fleet.router.pick("e")
        assert home is not None
        bad = next(e for e in servers.engines if e.url == home.endpoint.engine)
        bad.faults["POST /inference/v1/generate"] = fault
        assert (await fleet.generate("e", REQUEST, 3)).tokens == [4, 9]
        assert fleet.reroutes == 1


async def test_the_only_server_gets_the_request_again_on_its_return() -> None:
    async with a_fleet(1) as (fleet, servers):
        await fleet.want(manifest(0))
        servers.engines[0].faults["POST /inference/v1/generate"] = first(2, drop)
        assert (await fleet.generate("e", REQUEST, 5)).tokens == [4, 9]
        assert fleet.reroutes == 2


async def test_a_server_that_fails_verification_is_never_asked() -> None:
    async with a_fleet(2) as (fleet, servers):
        bad = {"version": None, "ready": False, "error": "canary off by 3.1"}
        servers.agents[0].answers = {"GET /v1/weights": lambda _: bad, "POST /v1/weights": lambda _: bad}
        await fleet.want(manifest(0))
        for episode in "abc":
            await fleet.generate(episode, REQUEST, 5)
        assert servers.engines[0].count("POST") == 0
        servers.gone.add(1)
        async with asyncio.timeout(5):
            while "canary off" not in str(fleet.router.problem()):
                await asyncio.sleep(0.01)


def swapped(body: Any) -> Any:
    """A turn whose first token was sampled with version 0 and whose second with version 1."""
    answer = engine([4, 9]).answers["POST /inference/v1/generate"](body)
    spans = [{"version": "0.0", "start": 0, "end": 1}, {"version": "0.1", "start": 1, "end": 2}]
    answer["choices"][0]["weight_versions"] = spans
    return answer


@pytest.mark.parametrize("right", [True, False])
async def test_a_turn_under_new_weights_counts_once_they_are_verified(right: bool) -> None:
    async with a_fleet(1) as (fleet, servers):
        await fleet.want(manifest(0))
        await fleet.ready()
        servers.engines[0].answers["POST /inference/v1/generate"] = swapped
        asked = asyncio.create_task(fleet.generate("e", REQUEST, 5))
        await asyncio.sleep(0.3)
        assert not asked.done()
        if not right:
            bad = {"version": None, "ready": False, "error": "canary off by 3.1"}
            servers.agents[0].answers = {"GET /v1/weights": lambda _: bad, "POST /v1/weights": lambda _: bad}
        await fleet.want(manifest(1))
        if right:
            assert [span.version for span in (await asked).versions] == [version(0), version(1)]
            assert fleet.reroutes == 0
        else:
            while fleet.reroutes == 0:
                await asyncio.sleep(0.01)
            assert not asked.done()
            asked.cancel()


async def test_a_turn_over_two_updates_waits_for_the_second() -> None:
    free = asyncio.Event()

    async def held(request: web.Request) -> None:
        await free.wait()

    def twice_swapped(body: Any) -> Any:
        answer = engine([4, 9, 5]).answers["POST /inference/v1/generate"](body)
        spans = [{"version": f"0.{i}", "start": i, "end": i + 1} for i in range(3)]
        answer["choices"][0]["weight_versions"] = spans
        return answer

    async with a_fleet(1) as (fleet, servers):
        await fleet.want(manifest(0))
        await fleet.ready()
        servers.engines[0].answers["POST /inference/v1/generate"] = twice_swapped
        servers.engines[0].faults["POST /inference/v1/generate"] = held
        asked = asyncio.create_task(fleet.generate("e", REQUEST, 5))
        await until(lambda: servers.engines[0].count("POST /inference") == 1)
        await fleet.want(manifest(1))
        await fleet.ready()
        servers.agents[0].faults["POST /v1/weights"] = hang  # the engine has version 2, its canary runs
        await fleet.want(manifest(2))
        [server] = fleet.router.servers.values()
        assert server.version == version(1)
        free.set()
        await asyncio.sleep(0.3)
        assert not asked.done()
        fleet.router.holds(server.endpoint, version(2))
        await fleet._notify()
        assert [span.version for span in (await asked).versions] == [version(n) for n in range(3)]


@pytest.mark.parametrize("route", ["GET /v1/weights", "POST /v1/weights"])
async def test_a_server_whose_answer_is_unreadable_leaves_rotation(route: str) -> None:
    async with a_fleet(2) as (fleet, servers):
        agent = servers.agents[0]
        plain = dict(agent.answers)
        agent.answers = plain | {route: lambda _: {"mood": "good"}}
        await fleet.want(manifest(0))
        await until(lambda: agent.count(route) >= 2)
        assert (await fleet.generate("e", REQUEST, 5)).tokens == [4, 9]
        assert servers.engines[0].count("POST") == 0
        bad = next(s for s in fleet.router.servers.values() if s.endpoint.weights == agent.url)
        assert "mood" in bad.problem
        assert (bad.failure is not None) == route.startswith("POST")
        agent.answers = plain
        await until(lambda: len(fleet.router.in_rotation()) == 2)


async def test_a_request_the_server_refuses_is_the_episodes_fault() -> None:
    async with a_fleet(1) as (fleet, servers):
        await fleet.want(manifest(0))
        servers.engines[0].faults["POST /inference/v1/generate"] = fail(400, "TooLong")
        with pytest.raises(InfraError, match="TooLong"):
            await fleet.generate("e", REQUEST, 5)


@pytest.mark.parametrize(
    "answer", [{}, {"choices": []}, {"choices": [{"finish_reason": "stop", "logprobs": 3}]}, []]
)
async def test_an_unreadable_turn_fails_only_its_episode(answer: Any) -> None:
    async with a_fleet(1) as (fleet, servers):
        await fleet.want(manifest(0))
        servers.engines[0].answers = {"POST /inference/v1/generate": lambda _: answer}
        with pytest.raises(InfraError, match="that cannot be read"):
            await fleet.generate("e", REQUEST, 5)


async def test_an_answer_that_is_not_json_is_retried_elsewhere() -> None:
    async def garbled(request: web.Request) -> web.StreamResponse:
        return web.Response(text="{oops", content_type="application/json")

    async with a_fleet(2) as (fleet, servers):
        await fleet.want(manifest(0))
        await until(lambda: len(fleet.router.in_rotation()) == 2)
        home = fleet.router.pick("e")
        assert home is not None
        bad = next(e for e in servers.engines if e.url == home.endpoint.engine)
        bad.faults["POST /inference/v1/generate"] = garbled
        assert (await fleet.generate("e", REQUEST, 5)).tokens == [4, 9]


def answer(**choice: Any) -> dict[str, Any]:
    content = [{"token_id": 4, "logprob": -0.5}, {"token_id": 9, "logprob": -0.1}]
    plain = {"finish_reason": "stop", "token_ids": [4, 9], "logprobs": {"content": content}}
    return {"choices": [plain | choice]}


def test_reported_versions_are_used_if_the_server_knows_ours() -> None:
    whole = [VersionSpan(start=0, end=2, version=version(3))]
    assert vllm.read(answer(), version(3)).versions == whole
    default = [{"version": "default", "start": 0, "end": 2}]
    assert vllm.read(answer(weight_versions=default), version(3)).versions == whole
    two = [{"version": "0.2", "start": 0, "end": 1}, {"version": "0.3", "start": 1, "end": 2}]
    spans = vllm.read(answer(weight_versions=two), version(3)).versions
    assert [(s.start, s.end, s.version.step) for s in spans] == [(0, 1, 2), (1, 2, 3)]


@pytest.mark.parametrize(
    "choice",
    [
        {"logprobs": None},
        {"logprobs": {"content": [{"token_id": 4, "logprob": -0.5}]}},
        {"logprobs": {"content": [{"token_id": 4, "logprob": -0.5}, {"token_id": 8, "logprob": -0.1}]}},
        {"logprobs": {"content": [{"token_id": 4, "logprob": -9999.0}, {"token_id": 9, "logprob": -0.1}]}},
        {"token_ids": [], "logprobs": {"content": []}},
    ],
)
def test_tokens_without_evidence_are_refused(choice: dict[str, Any]) -> None:
    with pytest.raises(InfraError):
        vllm.read(answer(**choice), version(0))


def test_an_aborted_request_may_be_sent_elsewhere() -> None:
    with pytest.raises(vllm.ServerLostError):
        vllm.read(answer(finish_reason="abort"), version(0))


def test_the_version_of_full_weights_is_not_assumed() -> None:
    """Full weights may be swapped during a request, so the requested version proves nothing."""
    with pytest.raises(InfraError, match="which weights"):
        vllm.read(answer(), version(0), static=False)
