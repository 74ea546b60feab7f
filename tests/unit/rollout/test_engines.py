"""Servers that die, refuse and lie: requests go elsewhere, and nothing unproven is sampled from."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from aiohttp import web
from episodes import version
from faulty_servers import Fault, Scripted, drop, engine, fail, first, hang, say
from hypothesis import given
from hypothesis import strategies as st
from scripted_fleet import REQUEST, a_fleet, manifest, until

from headway_api.conditions import Reason
from headway_api.records import VersionSpan
from headway_rollout import conditions
from headway_rollout.engines import fleet as fleets
from headway_rollout.engines import vllm, weights
from headway_rollout.engines.fleet import Fleet
from headway_rollout.engines.router import Failure
from headway_rollout.faults import InfraFault


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


async def test_every_server_is_given_a_new_version_and_then_sampled_from() -> None:
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


async def test_a_server_that_joins_late_takes_the_newest_weights_before_it_is_asked() -> None:
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
async def test_a_request_of_a_lost_server_goes_elsewhere(fault: Any) -> None:
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


async def test_the_only_server_is_asked_again_once_it_is_back() -> None:
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
    """A turn whose second token was sampled under version 1 already."""
    answer = engine([4, 9]).answers["POST /inference/v1/generate"](body)
    spans = [{"version": "0.0", "start": 0, "end": 1}, {"version": "0.1", "start": 1, "end": 2}]
    answer["choices"][0]["weight_versions"] = spans
    return answer


@pytest.mark.parametrize("right", [True, False])
async def test_a_turn_under_weights_taken_meanwhile_counts_once_they_are_verified(right: bool) -> None:
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


async def test_a_sync_lasts_from_the_report_to_the_first_server_in_rotation() -> None:
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


async def test_weights_a_server_holds_already_are_no_sync() -> None:
    async with a_fleet(1) as (fleet, servers):
        held = {"version": {"incarnation": 0, "step": 3}, "ready": True, "canary_error": 0.25}
        servers.agents[0].answers = {"GET /v1/weights": lambda _: held}
        await fleet.want(manifest(3))
        await until(fleet.router.in_rotation)
        assert (servers.loads, servers.syncs) == ([], [])
        [server] = fleet.router.in_rotation()
        assert server.canary_error == 0.25


@pytest.mark.parametrize(("reason", "counted"), [("VerificationFailed", 1), ("UpdateFailed", 0), (None, 0)])
async def test_a_failed_load_is_remembered_in_the_servers_words(reason: str | None, counted: int) -> None:
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


async def test_weights_that_a_server_refuses_are_told_it_ever_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time it may fetch a whole model."""
    monkeypatch.setattr(fleets, "RETRY_SECONDS", 0.1)
    async with a_fleet(1) as (fleet, servers):
        await fleet.want(manifest(0))
        await fleet.ready()
        agent, held = servers.agents[0], {"version": {"incarnation": 0, "step": 0}, "ready": True}
        bad = held | {"error": "Corrupt: model.safetensors", "reason": "VerificationFailed"}
        agent.faults["POST /v1/weights"] = say(bad)
        told = agent.count("POST")
        await fleet.want(manifest(1))
        await asyncio.sleep(1.2)  # 0.1 + 0.2 + 0.4 after the first one
        assert 2 <= agent.count("POST") - told <= 5
        del agent.faults["POST /v1/weights"]
        await fleet.want(manifest(2))
        await fleet.ready()


@given(st.integers(1, 10**6))
def test_no_pause_between_loads_is_longer_than_the_last(failures: int) -> None:
    assert fleets.retry_after(1) == fleets.RETRY_SECONDS
    pauses = fleets.retry_after(failures), fleets.retry_after(failures + 1)
    assert fleets.RETRY_SECONDS <= pauses[0] <= pauses[1] <= fleets.LAST_RETRY_SECONDS


async def overtaken(fleet: Fleet, agent: Scripted, answer: Fault) -> list[tuple[str, str]]:
    """What is said of the weights while a load of version 1 ends after version 2 has come to be wanted."""
    fleet.router.replicas = 1
    await fleet.want(manifest(0))
    await until(fleet.router.in_rotation)
    free = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse | None:
        step = (await request.json())["version"]["step"]
        if step == 1:
            await free.wait()
            return await answer(request)
        await asyncio.sleep(0.2)  # long enough to be seen
        return None

    agent.faults["POST /v1/weights"] = slow
    await fleet.want(manifest(1))
    await until(lambda: agent.count("POST") == 2)
    await fleet.want(manifest(2))
    free.set()
    told = conditions.after([], fleet.router)
    said = [(told[0].status, told[0].reason)]
    async with asyncio.timeout(5):
        while not fleet.router.in_rotation():
            await asyncio.sleep(0.002)
            told = conditions.after(told, fleet.router)
            if (now := (told[0].status, told[0].reason)) != said[-1]:
                said.append(now)
    return said


KEPT = {"version": {"incarnation": 0, "step": 0}, "ready": True}
GONE = KEPT | {"error": "NotJoined: 404 OtherWeights", "reason": "UpdateFailed"}
WRONG = {"version": None, "ready": False, "error": "NotVerified: off", "reason": "VerificationFailed"}


@pytest.mark.parametrize("answer", [say(GONE), drop, fail(500)], ids=["gone", "breaks off", "is refused"])
async def test_weights_that_were_overtaken_meanwhile_are_nobodys_failure(answer: Fault) -> None:
    async with a_fleet(1) as (fleet, servers):
        assert [status for status, _ in await overtaken(fleet, servers.agents[0], answer)] == ["True"]


async def test_weights_that_are_wrong_are_a_failure_even_where_they_were_overtaken() -> None:
    async with a_fleet(1) as (fleet, servers):
        said = await overtaken(fleet, servers.agents[0], say(WRONG))
        assert ("False", "VerificationFailed") in said
        assert fleet.verification_failures == 1


async def test_a_load_whose_answer_is_lost_keeps_no_server_out_that_took_it(
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


async def test_a_server_that_still_starts_has_failed_nothing() -> None:
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
async def test_a_load_without_an_answer_is_a_failure_until_one_succeeds(
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


async def test_a_server_whose_loads_are_all_overtaken_makes_it_false_until_one_is_not() -> None:
    may_end = asyncio.Semaphore(0)

    async def slow(_: web.Request) -> web.StreamResponse | None:
        await may_end.acquire()
        return None

    async with a_fleet(2) as (fleet, servers):
        router, agent = fleet.router, servers.agents[1]
        router.replicas = 2
        await fleet.want(manifest(0))
        await until(lambda: len(router.in_rotation()) == 2)
        told = conditions.Conditions(conditions.after([], router))
        agent.faults["POST /v1/weights"] = slow
        late = next(s for s in router.servers.values() if s.endpoint.weights == agent.url)
        await fleet.want(manifest(1))
        await until(lambda: agent.count("POST") == 2)
        await fleet.want(manifest(2))
        may_end.release()
        await until(lambda: late.version == version(1) and len(router.in_rotation()) == 1)
        assert [known.status for known in told.current(router, time.monotonic())] == ["True"]
        much_later = time.monotonic() + weights.LOAD_SECONDS + 1
        [found] = told.current(router, much_later)
        assert (found.status, found.reason) == ("False", "UpdateTimedOut")
        assert found.message.startswith(f"{late.endpoint.engine}: always behind")
        assert late.version == version(1), "its weights are right, for what it samples still"
        may_end.release()
        await until(lambda: len(router.in_rotation()) == 2)
        assert [known.status for known in told.current(router, much_later)] == ["True"]


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


@pytest.mark.parametrize("route", ["GET /v1/weights", "POST /v1/weights"])
async def test_an_answer_that_nobody_understands_puts_that_server_out_of_rotation(route: str) -> None:
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
        with pytest.raises(InfraFault, match="TooLong"):
            await fleet.generate("e", REQUEST, 5)


@pytest.mark.parametrize(
    "answer", [{}, {"choices": []}, {"choices": [{"finish_reason": "stop", "logprobs": 3}]}, []]
)
async def test_an_answer_nobody_understands_fails_the_episode_alone(answer: Any) -> None:
    async with a_fleet(1) as (fleet, servers):
        await fleet.want(manifest(0))
        servers.engines[0].answers = {"POST /inference/v1/generate": lambda _: answer}
        with pytest.raises(InfraFault, match="nobody understands"):
            await fleet.generate("e", REQUEST, 5)


async def test_an_answer_that_is_no_json_is_none() -> None:
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


def test_versions_are_those_the_server_reports_where_it_knows_ours() -> None:
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
    with pytest.raises(InfraFault):
        vllm.read(answer(**choice), version(0))


def test_an_aborted_request_may_be_sent_elsewhere() -> None:
    with pytest.raises(vllm.ServerLost):
        vllm.read(answer(finish_reason="abort"), version(0))


def test_full_weights_are_not_guessed() -> None:
    """They may have been swapped during the request: the version that was asked for proves nothing."""
    with pytest.raises(InfraFault, match="which weights"):
        vllm.read(answer(), version(0), adapter=False)
