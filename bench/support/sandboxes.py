"""A broker with a warm pool, without Kubernetes: real sandbox servers, one process for each episode.

As in the product, a lease takes a server that already runs, and another server is started to replace it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web
from lease_service import START_SECONDS, LeaseService

ENVIRONMENT = Path(__file__).resolve().parent / "environment"
ENTRYPOINT = "work:Work"
SANDBOX = Path(__file__).resolve().parents[2] / "sandbox"
STARTING_AT_ONCE = 16
# Use ports below the range from which the kernel assigns ports to outgoing connections.
PORTS = itertools.cycle(range(15000, 32000))
# -S: no site-packages, as in the sandbox's image.
COMMAND = [os.path.realpath(sys.executable), "-S", "-m", "headway_sandbox.server"]


@dataclass
class Started:
    """A running server that is not leased."""

    process: asyncio.subprocess.Process
    url: str


@dataclass
class WarmPool(LeaseService):
    """A lease service with a queue of running servers."""

    size: int = 16
    replaces: bool = True
    """Whether each lease starts another server to replace the leased one."""
    _ready: asyncio.Queue[Started] = field(default_factory=asyncio.Queue)
    _starting: set[asyncio.Task[None]] = field(default_factory=set)
    _http: aiohttp.ClientSession = field(default_factory=aiohttp.ClientSession)

    async def fill(self) -> None:
        """Start the missing servers, a few at a time, and wait for them."""
        for _ in range(self.size - self._ready.qsize() - len(self._starting)):
            self._start()
            if len(self._starting) >= STARTING_AT_ONCE:
                await asyncio.wait(self._starting, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*self._starting)

    async def close(self) -> None:
        """End all servers, leased or not."""
        await asyncio.gather(*self._starting)
        while not self._ready.empty():
            started = self._ready.get_nowait()
            started.process.kill()
            await started.process.wait()
        for lease in list(self.leased):
            await self._end(lease)
        await self._http.close()

    def _start(self) -> None:
        task = asyncio.create_task(self._started())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _started(self) -> None:
        port = next(PORTS)
        environment = {
            "PATH": os.environ["PATH"],
            "HEADWAY_ENTRYPOINT": self.entrypoint,
            "HEADWAY_SANDBOX_PORT": str(port),
            "PYTHONPATH": f"{SANDBOX}:{self.folder}",
        }
        process = await asyncio.create_subprocess_exec(*COMMAND, env=environment, cwd=self.folder)
        url = f"http://127.0.0.1:{port}"
        async with asyncio.timeout(START_SECONDS):
            while True:
                try:
                    async with self._http.get(f"{url}/healthz"):
                        break
                except aiohttp.ClientConnectionError:
                    assert process.returncode is None, "the sandbox's server ended"
                    await asyncio.sleep(0.05)
        self._ready.put_nowait(Started(process, url))

    async def _lease(self, request: web.Request) -> web.Response:
        assert self._allowed(request)
        body = await request.json()
        lease, token, asked = body["lease"], secrets.token_hex(8), time.monotonic()
        if self.replaces:
            self._start()
        started = await self._ready.get()
        self.leased[lease] = started.process
        self.total += 1
        self.peak = max(self.peak, len(self.leased))
        await self._bind(started.url, lease, token, time.time() + body["deadline_seconds"])
        answer = {"lease": lease, "pod": f"process-{started.process.pid}", "url": started.url, "token": token}
        return web.json_response(answer | {"waited_seconds": time.monotonic() - asked}, status=201)


@asynccontextmanager
async def warm_pool(
    token: str,
    size: int,
    environment: Path = ENVIRONMENT,
    entrypoint: str = ENTRYPOINT,
    *,
    replaces: bool = True,
) -> AsyncIterator[WarmPool]:
    """Run a broker during the block, and end all of its sandboxes afterwards. `environment` is a folder."""
    pool = WarmPool(environment, environment, entrypoint, token, size=size, replaces=replaces)
    runner = web.AppRunner(pool.app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    pool.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        await pool.fill()
        yield pool
    finally:
        await runner.cleanup()
        await pool.close()
