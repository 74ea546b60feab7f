"""The coordinator's fleet over rollout servers whose answers a test scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
from episodes import version
from faulty_servers import Scripted, engine, serving, weight_agent

from headway_api.records import Canary, WeightsManifest
from headway_coordinator.engines import vllm
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.engines.router import Endpoint

REQUEST = vllm.Request(prompt=[1, 2, 3], max_tokens=5, temperature=1.0, top_p=1.0, seed=7, stop_token_ids=[9])


def manifest(step: int) -> WeightsManifest:
    canary = Canary(tokens=[1, 2], logprobs=[-1.0], tolerance=0.1)
    return WeightsManifest(version=version(step), kind="lora", uri="file:///w", files=[], canary=canary)


class Servers:
    """Rollout servers that a test can cause to fail."""

    def __init__(self) -> None:
        self.engines: list[Scripted] = []
        self.agents: list[Scripted] = []
        self.gone: set[int] = set()
        self.loads: list[float] = []
        self.syncs: list[tuple[int, float]] = []

    async def discover(self) -> set[Endpoint]:
        pairs = enumerate(zip(self.engines, self.agents, strict=True))
        return {Endpoint(e.url, a.url) for i, (e, a) in pairs if i not in self.gone}


@asynccontextmanager
async def a_fleet(number: int) -> AsyncIterator[tuple[Fleet, Servers]]:
    servers = Servers()
    async with AsyncExitStack() as stack:
        for _ in range(number):
            servers.engines.append(await stack.enter_async_context(serving(engine([4, 9]))))
            servers.agents.append(await stack.enter_async_context(serving(weight_agent())))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        fleet = Fleet(
            http,
            "token",
            servers.discover,
            on_load=servers.loads.append,
            on_sync=lambda step, seconds: servers.syncs.append((step, seconds)),
        )
        running = asyncio.create_task(fleet.run())
        try:
            async with asyncio.timeout(30):
                yield fleet, servers
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)
