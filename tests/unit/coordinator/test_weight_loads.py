"""Servers load weights in time, too late or never, and the coordinator reports it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from aiohttp import web
from episodes import version
from faulty_servers import Fault, Scripted, drop, fail, first, hang, say
from hypothesis import given
from hypothesis import strategies as st
from scripted_fleet import a_fleet, manifest, until

from headway_api.conditions import Reason
from headway_coordinator import conditions
from headway_coordinator.engines import fleet as fleets
from headway_coordinator.engines import weights
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.engines.router import Failure


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(fleets, "DISCOVER_SECONDS", 0.05)


async def test_sync_lasts_from_report_to_first_server_in_rotation() -> None:
    async with a_fleet(2) as (fleet, servers):
        await fleet.want(manifest(0))
        await until(lambda: len(fleet.router.in_rotation()) == 2)
        assert (len(servers.loads), servers.syncs) == (2, []), "nobody knows when these were reported"
        await fleet.want(manifest(1), time.monotonic() - 100)
        await until(lambda: len(fleet.router.in_rotation()) == 2)
        assert len(servers.loads) == 4
        [(step, seconds)] = servers.syncs
        assert step == 1
        assert 100 < seconds < 110
        assert max(servers.loads) < 100


async def test_weights_that_a_server_holds_need_no_sync() -> None:
    async with a_fleet(1) as (fleet, servers):
        held = {"version": {"incarnation": 0, "step": 3}, "ready": True, "canary_error": 0.25}
        servers.agents[0].answers = {"GET /v1/weights": lambda _: held}
        await fleet.want(manifest(3))
        await until(fleet.router.in_rotation)
        assert (servers.loads, servers.syncs) == ([], [])
        [server] = fleet.router.in_rotation()
        assert server.canary_error == 0.25


@pytest.mark.parametrize(("reason", "counted"), [("VerificationFailed", 1), ("UpdateFailed", 0), (None, 0)])
async def test_a_failed_load_is_remembered_with_the_servers_error(reason: str | None, counted: int) -> None:
    async with a_fleet(1) as (fleet, servers):
        state: dict[str, Any] = {"version": None, "ready": False}
        bad = {"version": None, "ready": False, "error": "canary off by 3.1", "reason": reason}
        agent = servers.agents[0]
        agent.answers = {"GET /v1/weights": lambda _: state, "POST /v1/weights": lambda _: state | bad}
        await fleet.want(manifest(0))
        await until(lambda: agent.count("POST") == 1)
        state |= bad
        await until(lambda: agent.count("POST") == 4)
        [server] = fleet.router.servers.values()
        assert server.failure == Failure(Reason(reason or "UpdateFailed"), "canary off by 3.1")
        assert fleet.verification_failures == counted
        good = {"version": {"incarnation": 0, "step": 0}, "ready": True}
        agent.answers = {"GET /v1/weights": lambda _: state, "POST /v1/weights": lambda _: good}
        await until(fleet.router.in_rotation)
        assert server.failure is None


async def test_a_server_that_refuses_weights_is_asked_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each try may fetch a whole model."""
    monkeypatch.setattr(fleets, "RETRY_SECONDS", 0.1)
    async with a_fleet(1) as (fleet, servers):
        await fleet.want(manifest(0))
        await fleet.ready()
        agent, held = servers.agents[0], {"version": {"incarnation": 0, "step": 0}, "ready": True}
        bad = held | {"error": "Corrupt: model.safetensors", "reason": "VerificationFailed"}
        agent.faults["POST /v1/weights"] = say(bad)
        posts = agent.count("POST")
        await fleet.want(manifest(1))
        await asyncio.sleep(1.2)  # pauses of 0.1, 0.2 and 0.4 s after the first try
        assert 2 <= agent.count("POST") - posts <= 5
        del agent.faults["POST /v1/weights"]
        await fleet.want(manifest(2))
        await fleet.ready()


@given(st.integers(1, 10**6))
def test_pauses_between_loads_grow_up_to_a_maximum(failures: int) -> None:
    assert fleets.retry_after(1) == fleets.RETRY_SECONDS
    pauses = fleets.retry_after(failures), fleets.retry_after(failures + 1)
    assert fleets.RETRY_SECONDS <= pauses[0] <= pauses[1] <= fleets.LAST_RETRY_SECONDS


async def overtaken(fleet: Fleet, agent: Scripted, answer: Fault) -> list[tuple[str, str]]:
    """The condition's statuses and reasons while a load of version 1 ends after version 2 is wanted."""
    fleet.router.replicas = 1
    await fleet.want(manifest(0))
    await until(fleet.router.in_rotation)
    free = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse | None:
        step = (await request.json())["version"]["step"]
        if step == 1:
            await free.wait()
            return await answer(request)
        await asyncio.sleep(0.2)  # long enough that a look sees the load
        return None

    agent.faults["POST /v1/weights"] = slow
    await fleet.want(manifest(1))
    await until(lambda: agent.count("POST") == 2)
    await fleet.want(manifest(2))
    free.set()
    current = conditions.after([], fleet.router)
    reported = [(current[0].status, current[0].reason)]
    async with asyncio.timeout(5):
        while not fleet.router.in_rotation():
            await asyncio.sleep(0.002)
            current = conditions.after(current, fleet.router)
            if (now := (current[0].status, current[0].reason)) != reported[-1]:
                reported.append(now)
    return reported


KEPT = {"version": {"incarnation": 0, "step": 0}, "ready": True}
GONE = KEPT | {"error": "NotJoined: 404 OtherWeights", "reason": "UpdateFailed"}
WRONG = {"version": None, "ready": False, "error": "NotVerified: off", "reason": "VerificationFailed"}


@pytest.mark.parametrize("answer", [say(GONE), drop, fail(500)], ids=["gone", "breaks off", "is refused"])
async def test_a_failed_load_of_replaced_weights_is_not_a_failure(answer: Fault) -> None:
    async with a_fleet(1) as (fleet, servers):
        assert [status for status, _ in await overtaken(fleet, servers.agents[0], answer)] == ["True"]


async def test_wrong_weights_are_a_failure_even_if_overtaken() -> None:
    async with a_fleet(1) as (fleet, servers):
        reported = await overtaken(fleet, servers.agents[0], say(WRONG))
        assert ("False", "VerificationFailed") in reported
        assert fleet.verification_failures == 1


async def test_a_lost_load_answer_keeps_no_loaded_server_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleets, "CHECK_SECONDS", 0.2)
    monkeypatch.setattr(weights, "ASK_SECONDS", 0.3)
    async with a_fleet(1) as (fleet, servers):
        await fleet.want(manifest(0))
        await until(fleet.router.in_rotation)
        agent = servers.agents[0]
        agent.faults |= {"POST /v1/weights": hang}
        await fleet.want(manifest(1))
        await until(lambda: agent.count("POST") == 2)
        agent.faults["GET /v1/weights"] = hang
        await until(lambda: fleet.router.servers and not fleet.router.verified())
        agent.faults["GET /v1/weights"] = say({"version": {"incarnation": 0, "step": 1}, "ready": True})
        async with asyncio.timeout(5):
            await fleet.ready()
        assert agent.count("POST") == 2
        assert len(servers.loads) == 2


async def test_a_server_that_is_starting_has_no_failure() -> None:
    async with a_fleet(1) as (fleet, servers):
        servers.agents[0].faults["POST /v1/weights"] = first(2, fail(503, "EngineStarting"))
        await fleet.want(manifest(0))
        await until(lambda: servers.agents[0].count("POST") == 2)
        [server] = fleet.router.servers.values()
        assert server.failure is None
        await until(fleet.router.in_rotation)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (hang, Reason.UPDATE_TIMED_OUT),
        (drop, Reason.SERVER_SILENT),
        (fail(500), Reason.UPDATE_FAILED),
    ],
    ids=["times out", "breaks off", "is refused"],
)
async def test_unanswered_load_is_a_failure_until_one_succeeds(
    fault: Any, reason: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "LOAD_SECONDS", 0.3)
    async with a_fleet(2) as (fleet, servers):
        fleet.router.replicas = 2
        servers.agents[0].faults["POST /v1/weights"] = fault
        await fleet.want(manifest(0))
        await until(lambda: len(fleet.router.in_rotation()) == 1)
        bad = next(s for s in fleet.router.servers.values() if s.endpoint.weights == servers.agents[0].url)
        await until(lambda: bad.failure)
        [found] = conditions.after([], fleet.router)
        assert (found.status, found.reason) == ("False", reason)
        assert found.message.startswith(f"{bad.endpoint.engine}: POST {bad.endpoint.weights}/v1/weights: ")
        del servers.agents[0].faults["POST /v1/weights"]
        await until(lambda: len(fleet.router.in_rotation()) == 2)
        assert [known.status for known in conditions.after([found], fleet.router)] == ["True"]


async def test_condition_is_false_while_a_server_is_always_overtaken() -> None:
    may_end = asyncio.Semaphore(0)

    async def slow(_: web.Request) -> web.StreamResponse | None:
        await may_end.acquire()
        return None

    async with a_fleet(2) as (fleet, servers):
        router, agent = fleet.router, servers.agents[1]
        router.replicas = 2
        await fleet.want(manifest(0))
        await until(lambda: len(router.in_rotation()) == 2)
        tracked = conditions.Conditions(conditions.after([], router))
        agent.faults["POST /v1/weights"] = slow
        late = next(s for s in router.servers.values() if s.endpoint.weights == agent.url)
        await fleet.want(manifest(1))
        await until(lambda: agent.count("POST") == 2)
        await fleet.want(manifest(2))
        may_end.release()
        await until(lambda: late.version == version(1) and len(router.in_rotation()) == 1)
        assert [known.status for known in tracked.current(router, time.monotonic())] == ["True"]
        much_later = time.monotonic() + weights.LOAD_SECONDS + 1
        [found] = tracked.current(router, much_later)
        assert (found.status, found.reason) == ("False", "UpdateTimedOut")
        assert found.message.startswith(f"{late.endpoint.engine}: always behind")
        assert late.version == version(1), "its weights are right, for what it samples still"
        may_end.release()
        await until(lambda: len(router.in_rotation()) == 2)
        assert [known.status for known in tracked.current(router, much_later)] == ["True"]


async def test_a_silent_weight_agent_is_a_failure_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "CHECK_SECONDS", 0.2)
    monkeypatch.setattr(weights, "ASK_SECONDS", 0.3)
    async with a_fleet(2) as (fleet, servers):
        fleet.router.replicas = 2
        await fleet.want(manifest(0))
        await until(lambda: len(fleet.router.in_rotation()) == 2)
        servers.agents[0].faults["GET /v1/weights"] = hang
        before = conditions.after([], fleet.router)
        await until(lambda: conditions.after(before, fleet.router) != before)
        [found] = conditions.after(before, fleet.router)
        assert (found.status, found.reason) == ("False", "ServerSilent")
        assert "no answer within 0.3 s" in found.message
        del servers.agents[0].faults["GET /v1/weights"]
        await until(lambda: len(fleet.router.in_rotation()) == 2)
        assert [known.status for known in conditions.after([found], fleet.router)] == ["True"]
