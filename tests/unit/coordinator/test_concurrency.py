"""How many episodes run at once: a pure policy, and the readings of the servers on which it decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web
from episodes import version
from faulty_servers import Fault, Scripted, drop, fail, hang, keyed, serving
from hypothesis import assume, given
from hypothesis import strategies as st
from role_keys import TO_ROLLOUT

from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.engines import concurrency
from headway_coordinator.engines.concurrency import FULL, KV_USE_LIMIT, Concurrency, LoadSample, adapt, read
from headway_coordinator.engines.router import Endpoint, Reading, Router

VERSIONS = st.integers(0, 2).map(version)
READINGS = st.builds(
    Reading,
    version=VERSIONS,
    kv_use=st.floats(0, 1),
    preemptions=st.integers(0, 4).map(float),
    waiting=st.integers(0, 2).map(float),
)
SAMPLES = st.lists(st.builds(LoadSample, st.none() | READINGS, READINGS), max_size=4)
CEILINGS = st.integers(1, 64)


def reading(kv_use: float = 0.5, preemptions: float = 0, waiting: float = 0, step: int = 1) -> Reading:
    return Reading(version(step), kv_use, preemptions, waiting)


CALM = LoadSample(reading(), reading())
TIGHT = LoadSample(reading(), reading(kv_use=(FULL + KV_USE_LIMIT) / 2))
BRIMFUL = LoadSample(reading(), reading(kv_use=FULL))
PREEMPTED = LoadSample(reading(preemptions=3), reading(preemptions=4))


@given(data=st.data(), ceiling=CEILINGS, wanted=st.booleans(), samples=SAMPLES)
def test_the_limit_is_at_least_the_servers_and_at_most_ceiling(
    data: st.DataObject, ceiling: int, wanted: bool, samples: list[LoadSample]
) -> None:
    limit, peak = data.draw(st.integers(1, ceiling)), data.draw(st.integers(0, ceiling))
    found = adapt(limit, ceiling, peak, wanted, samples)
    assert min(max(1, len(samples)), ceiling) <= found <= ceiling or (not samples and found == limit)


@given(data=st.data(), ceiling=CEILINGS, wanted=st.booleans(), samples=SAMPLES)
def test_a_worse_reading_never_raises_the_limit(
    data: st.DataObject, ceiling: int, wanted: bool, samples: list[LoadSample]
) -> None:
    assume(samples)
    limit, peak = data.draw(st.integers(1, ceiling)), data.draw(st.integers(0, ceiling))
    at = data.draw(st.integers(0, len(samples) - 1))
    before, now = samples[at]
    worse = Reading(
        now.version,
        data.draw(st.floats(now.kv_use, 1)),
        now.preemptions + data.draw(st.integers(0, 2)),
        now.waiting + data.draw(st.integers(0, 2)),
    )
    then = [*samples[:at], LoadSample(before, worse), *samples[at + 1 :]]
    assert adapt(limit, ceiling, peak, wanted, then) <= adapt(limit, ceiling, peak, wanted, samples)


@given(limit=st.integers(1, 64), wanted=st.booleans(), peak=st.integers(0, 64))
def test_the_limit_is_unchanged_if_no_server_answers(limit: int, wanted: bool, peak: int) -> None:
    assert adapt(limit, 64, peak, wanted, []) == limit


@given(limit=st.integers(1, 64), servers=st.integers(1, 5))
def test_the_limit_recovers_to_the_ceiling_if_caches_have_room(limit: int, servers: int) -> None:
    looks = 0
    while limit < 64:
        limit, looks = adapt(limit, 64, limit, True, [CALM] * servers), looks + 1
        assert looks <= 64, "it does not get there"
    assert adapt(limit, 64, limit, True, [CALM] * servers) == 64


@given(limit=st.integers(1, 64), bad=st.sampled_from([BRIMFUL, PREEMPTED]), others=st.integers(0, 3))
def test_one_full_server_cuts_the_limit_to_the_floor_if_it_lasts(
    limit: int, bad: LoadSample, others: int
) -> None:
    samples = [CALM] * others + [bad]
    assume(limit >= len(samples))
    found = adapt(limit, 64, limit, True, samples)
    assert found == max(len(samples), int(0.75 * limit))
    for _ in range(20):
        found = adapt(found, 64, found, True, samples)
    assert found == len(samples)


@pytest.mark.parametrize(
    ("peak", "wanted", "sample", "expected"),
    [
        (20, True, CALM, 21),
        (20, False, CALM, 20),  # no episode waits for the place
        (20, True, TIGHT, 20),
        (20, True, LoadSample(reading(), reading(waiting=1)), 20),  # it would wait in the engine instead
        (20, True, BRIMFUL, 15),
        (12, False, BRIMFUL, 9),  # 12 episodes were too many: a limit of 12 or more changes nothing
        (21, True, BRIMFUL, 20),  # the last cut has not had its effect yet
        (21, True, CALM, 20),
        (20, True, PREEMPTED, 15),
        (20, False, LoadSample(None, reading(preemptions=9)), 20),
        (
            20,
            False,
            LoadSample(reading(preemptions=9), reading(preemptions=2)),
            20,
        ),  # the server restarted, so its counter did too
        (20, False, LoadSample(reading(step=1), reading(preemptions=8, step=2)), 20),  # it took new weights
    ],
)
def test_preemptions_and_cache_use_move_the_limit(
    peak: int, wanted: bool, sample: LoadSample, expected: int
) -> None:
    assert adapt(20, 96, peak, wanted, [sample]) == expected


METRICS = """\
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="base"}} {use}
vllm:kv_cache_usage_perc{{engine="1",model_name="base"}} 0.1
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="base"}} {waiting}
vllm:num_requests_waiting_by_reason{{engine="0",model_name="base",reason="capacity"}} 77.0
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{{engine="0",model_name="base"}} {preemptions}
vllm:num_preemptions_total{{engine="1",model_name="base"}} 4.0
vllm:num_preemptions_created{{engine="0",model_name="base"}} 1.7e+09
vllm:request_num_preemptions_bucket{{engine="0",le="1.0",model_name="base"}} 55.0
"""


def metrics(use: float, preemptions: float, waiting: float = 0.0) -> str:
    return METRICS.format(use=use, preemptions=preemptions, waiting=waiting)


def test_vllms_metrics_are_read() -> None:
    assert read(metrics(0.25, 3.0, 2.0)) == (0.25, 7.0, 2.0)


@pytest.mark.parametrize("gone", ["kv_cache_usage_perc{", "num_preemptions_total{", "num_requests_waiting{"])
def test_a_missing_metric_makes_the_reading_unknown(gone: str) -> None:
    assert read("\n".join(line for line in metrics(0.5, 1).splitlines() if gone not in line)) is None


@pytest.mark.parametrize("use", ["NaN", "+Inf", "half", ""])
def test_a_value_that_is_not_a_number_is_unknown(use: str) -> None:
    assert read(metrics(0.5, 1).replace("} 0.5", f"}} {use}")) is None


@given(text=st.text())
def test_nonsense_is_an_unknown_reading_and_not_an_error(text: str) -> None:
    assert read("vllm:kv_cache_usage_perc{" + text) is None


@dataclass
class Rig:
    limiter: AdaptiveSemaphore
    router: Router
    looking: Concurrency
    engines: list[Scripted]
    says: dict[str, str] = field(default_factory=dict)

    async def look(self, limit: int | None = None) -> int:
        """Read the servers once, while `limit` episodes run and one waits. Returns the new limit."""
        async with AsyncExitStack() as stack:
            for _ in range(limit or self.limiter.limit):
                await stack.enter_async_context(self.limiter)
            waiting = asyncio.create_task(self.limiter.__aenter__())
            await asyncio.sleep(0)
            await self.looking.look()
            waiting.cancel()
            if not (await asyncio.gather(waiting, return_exceptions=True))[0]:
                await self.limiter.__aexit__(None, None, None)
        self.limiter.demand()
        return self.limiter.limit


@asynccontextmanager
async def rig(servers: int = 2, ceiling: int = 8) -> AsyncIterator[Rig]:
    router, limiter = Router(wanted=version(1)), AdaptiveSemaphore(ceiling)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        found = Rig(limiter, router, Concurrency(http, TO_ROLLOUT, router, limiter), [])

        def saying(scripted: Scripted) -> Fault:
            async def answer(request: web.Request) -> web.StreamResponse:
                return web.Response(text=found.says[scripted.url])

            return answer

        for _ in range(servers):
            engine = await stack.enter_async_context(serving(Scripted({})))
            engine.faults["GET /metrics"] = saying(engine)
            found.engines.append(engine)
            found.says[engine.url] = metrics(0.5, 0)
        router.discovered(Endpoint(engine.url, f"{engine.url}/agent") for engine in found.engines)
        for endpoint in router.servers:
            router.holds(endpoint, version(1))
        yield found


async def test_a_preemption_cuts_the_limit_and_calm_raises_it_again() -> None:
    async with rig() as r:
        assert await r.look() == 8
        r.says[r.engines[1].url] = metrics(0.5, 2)
        assert await r.look() == 6
        assert r.router.preemptions == 2
        assert await r.look() == 8, "one more for each of two servers"


@pytest.mark.parametrize("fault", [drop, fail(500), hang])
async def test_a_server_that_does_not_answer_changes_nothing(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrency, "ANSWER_SECONDS", 0.2)
    async with rig(servers=1) as r:
        r.engines[0].faults["GET /metrics"] = fault
        assert await r.look() == 8
        assert [server.reading for server in r.router.servers.values()] == [None]


async def test_a_server_is_asked_with_the_key_of_its_port() -> None:
    async with rig(servers=1) as r:
        serve_metrics, seen = r.engines[0].faults["GET /metrics"], []

        async def answer(request: web.Request) -> web.StreamResponse | None:
            refused = await keyed(TO_ROLLOUT)(request)
            seen.append(refused is None)
            return refused or await serve_metrics(request)

        r.engines[0].faults["GET /metrics"] = answer
        await r.look()
        assert seen == [True]
        assert [server.reading is None for server in r.router.servers.values()] == [False]


async def test_a_server_that_loads_weights_does_not_change_the_limit() -> None:
    async with rig(servers=1) as r:
        await r.look()
        text = metrics(0.99, 50)

        async def late(request: web.Request) -> web.StreamResponse:
            r.router.wanted = version(2)
            return web.Response(text=text)

        r.engines[0].faults["GET /metrics"] = late
        assert await r.look() == 8
        assert await r.look() == 8, "and while it is out of rotation it is not asked"
        [server] = r.router.servers.values()
        r.router.holds(server.endpoint, version(2))
        text = metrics(0.5, 50)
        assert await r.look() == 8, "what it preempted for the weights does not count"
        text = metrics(0.5, 51)
        assert await r.look() == 6


async def test_server_reading_is_dropped_when_it_leaves_rotation() -> None:
    async with rig(servers=1) as r:
        [server] = r.router.servers.values()
        await r.look()
        assert server.reading == Reading(version(1), 0.5, 4.0, 0.0)
        r.router.wanted = version(2)
        await r.look()
        assert server.reading is None


async def test_servers_are_read_periodically(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "LOOK_SECONDS", 0.01)
    async with rig(servers=1) as r:
        running = asyncio.create_task(r.looking.run())
        async with asyncio.timeout(5):
            while r.engines[0].count("GET /metrics") < 3:
                await asyncio.sleep(0.01)
        running.cancel()
        assert r.limiter.limit == 8
