"""A server is lost while it holds requests, which then go to another server.

Requests stay on a server that only loads weights or misses a single look.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from episodes import version
from faulty_servers import fail, first, hang, say
from scripted_fleet import REQUEST, Servers, a_fleet, manifest, until

from headway_coordinator.engines import fleet as fleets
from headway_coordinator.engines import router, weights
from headway_coordinator.engines.discovery import by_dns
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.engines.router import Endpoint
from headway_coordinator.faults import InfraError


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(fleets, "DISCOVER_SECONDS", 0.05)
    monkeypatch.setattr(fleets, "CHECK_SECONDS", 0.2)
    monkeypatch.setattr(weights, "ASK_SECONDS", 0.3)


class Held:
    """A fault that holds requests without an answer until `free` is set."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.connections: list[asyncio.Transport] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse | None:
        assert request.transport is not None
        self.connections.append(request.transport)
        await self.free.wait()
        return None

    def cancelled(self) -> bool:
        """Whether the clients of all held requests have disconnected."""
        return all(connection.is_closing() for connection in self.connections)


@asynccontextmanager
async def held_turns(
    fleet: Fleet, servers: Servers, number: int
) -> AsyncIterator[tuple[int, Held, list[asyncio.Task[Any]]]]:
    """Start the first turns of `number` episodes.

    One server holds its turns; yields its index, the fault and all turns.
    """
    await fleet.want(manifest(0))
    await until(lambda: len(fleet.router.in_rotation()) == len(servers.engines))
    home = fleet.router.pick("e0")
    assert home is not None
    bad = next(i for i, e in enumerate(servers.engines) if e.url == home.endpoint.engine)
    held = Held()
    servers.engines[bad].faults["POST /inference/v1/generate"] = held
    turns = [asyncio.create_task(fleet.generate(f"e{i}", REQUEST, 600)) for i in range(number)]
    try:
        await until(lambda: len(held.connections) == number // len(servers.engines))
        yield bad, held, turns
    finally:
        for turn in turns:
            turn.cancel()
        await asyncio.gather(*turns, return_exceptions=True)


@pytest.mark.parametrize("how", ["left discovery", "fell silent", "fell silent in a load"])
async def test_requests_of_a_lost_server_go_to_another(how: str) -> None:
    async with a_fleet(2) as (fleet, servers), held_turns(fleet, servers, 4) as (bad, held, turns):
        known = list(fleet.router.servers.values())
        if how == "left discovery":
            servers.gone.add(bad)
        servers.agents[bad].faults["GET /v1/weights"] = hang
        if how == "fell silent in a load":
            servers.agents[bad].faults["POST /v1/weights"] = hang
            await fleet.want(manifest(1))
        async with asyncio.timeout(20):
            assert [(await turn).tokens for turn in turns] == [[4, 9]] * 4
        assert fleet.reroutes == 2
        [left] = fleet.router.in_rotation()
        assert left.endpoint.engine == servers.engines[1 - bad].url
        assert [server.inflight for server in known] == [0, 0]
        await until(held.cancelled)


@pytest.mark.parametrize(
    "how",
    ["new weights", "weights it refuses", "one look missed", "nonsense", "left discovery"],
)
async def test_requests_stay_on_a_server_only_out_of_rotation(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A slow CPU must not make the server miss a second look, because two missed looks lose the server.
    monkeypatch.setattr(weights, "ASK_SECONDS", 1.5)
    async with a_fleet(2) as (fleet, servers), held_turns(fleet, servers, 2) as (bad, held, turns):
        agent = servers.agents[bad]
        if how == "one look missed":
            agent.faults["GET /v1/weights"] = first(2, hang)  # the looks of the sync and of the watch
        elif how == "left discovery":  # perhaps its readiness probe was only slow
            servers.gone.add(bad)
        elif how == "nonsense":
            agent.faults["GET /v1/weights"] = say({"mood": "good"})
        else:
            refused = {"version": {"incarnation": 0, "step": 0}, "ready": True, "error": "no such file"}
            agent.faults["POST /v1/weights"] = hang if how == "new weights" else say(refused)
            await fleet.want(manifest(1))
        looks = agent.count("GET")
        await until(lambda: agent.count("GET") > looks + 4)
        held.free.set()
        async with asyncio.timeout(20):
            assert [(await turn).versions[0].version for turn in turns] == [version(0)] * 2
        assert fleet.reroutes == 0


async def test_a_server_that_fails_every_turn_is_asked_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "FIRST_REST_SECONDS", 0.5)
    async with a_fleet(2) as (fleet, servers):
        await fleet.want(manifest(0))
        await until(lambda: len(fleet.router.in_rotation()) == 2)
        first_asked = fleet.router.in_rotation()[0].endpoint.engine
        bad = next(engine for engine in servers.engines if engine.url == first_asked)
        bad.faults["POST /inference/v1/generate"] = fail(500)
        for i in range(60):
            async with asyncio.timeout(5):
                assert (await fleet.generate(f"e{i}", REQUEST, 5)).tokens == [4, 9]
            fleet.router.forget(f"e{i}")
            await asyncio.sleep(0.02)
        assert 1 <= bad.count("POST") <= 5, "of 60 turns"
        assert len(fleet.router.verified()) == 2
        bad.faults.clear()
        await until(lambda: len(fleet.router.in_rotation()) == 2)
        asked = bad.count("POST")
        await asyncio.gather(*(fleet.generate(f"f{i}", REQUEST, 5) for i in range(4)))
        assert bad.count("POST") == asked + 2
        assert [server.losses for server in fleet.router.servers.values()] == [0, 0]


async def test_the_only_server_is_asked_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "FIRST_REST_SECONDS", 60.0)
    async with a_fleet(1) as (fleet, servers):
        await fleet.want(manifest(0))
        servers.engines[0].faults["POST /inference/v1/generate"] = first(1, fail(500))
        async with asyncio.timeout(5):
            assert (await fleet.generate("e", REQUEST, 5)).tokens == [4, 9]
        assert fleet.reroutes == 1


async def test_a_caller_that_leaves_cancels_its_request() -> None:
    async with a_fleet(1) as (fleet, servers), held_turns(fleet, servers, 3) as (_, held, turns):
        [server] = fleet.router.servers.values()
        for left, turn in enumerate(reversed(turns)):
            assert server.inflight == 3 - left
            turn.cancel()
            await asyncio.wait({turn})
            assert turn.cancelled()
        assert server.inflight == 0
        await until(held.cancelled)
        servers.gone.add(0)
        await until(lambda: not fleet.router.servers)
        assert fleet.reroutes == 0


async def test_unreachable_name_server_leaves_the_servers_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[Any] = ["10.0.0.1", socket.EAI_AGAIN, socket.EAI_NONAME, "fd00::1"]

    async def resolve(*_: object, **__: object) -> list[Any]:
        answer = answers.pop(0)
        if isinstance(answer, int):
            raise socket.gaierror(answer, "on purpose")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answer, 0))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    discover = by_dns("job-rollout")
    one = Endpoint("http://10.0.0.1:8000", "http://10.0.0.1:8001")
    six = Endpoint("http://[fd00::1]:8000", "http://[fd00::1]:8001")
    assert [await discover() for _ in range(4)] == [{one}, {one}, set(), {six}]


async def test_a_turn_that_no_server_can_answer_pauses_and_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleets, "FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(fleets, "LAST_PAUSE_SECONDS", 0.05)
    async with a_fleet(2) as (fleet, servers):
        await fleet.want(manifest(0))
        await until(lambda: len(fleet.router.in_rotation()) == 2)
        for engine in servers.engines:
            engine.faults["POST /inference/v1/generate"] = fail(500)
        with pytest.raises(InfraError, match=f"{fleets.TRIES} servers in a row failed this turn"):
            await fleet.generate("e", REQUEST, 5)
        asked = [engine.count("POST") for engine in servers.engines]
        assert sum(asked) == fleets.TRIES
        assert min(asked) > 0
