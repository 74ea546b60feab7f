"""A broker without Kubernetes: the broker's API, with one real sandbox server process a lease.

Everything that the coordinator sees is real, except for where the sandbox runs. `kill` ends one sandbox
without notice, as the loss of its node would.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from ports import free_port

START_SECONDS = 20.0


@dataclass
class LeaseService:
    """Starts `python -m headway_sandbox.server` for each lease."""

    folder: Path
    """The folder of the environment's module."""
    episodes: Path
    """The folder of the files in which programs find their episodes."""
    entrypoint: str
    token: str
    config: dict[str, Any] = field(default_factory=dict)
    """The environment's configuration."""
    url: str = ""
    owners: list[str] = field(default_factory=list)
    leased: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)
    """Leases whose sandbox answers."""
    total: int = 0
    peak: int = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/leases", self._lease)
        app.router.add_delete("/v1/leases/{id}", self._release)
        app.router.add_post("/v1/owners", self._owner)
        app.router.add_get("/v1/pool", self._pool)
        return app

    async def kill(self, lease: str) -> None:
        self.bound.discard(lease)
        self.leased[lease].kill()
        await self.leased[lease].wait()

    def _allowed(self, request: web.Request) -> bool:
        return request.headers.get("Authorization") == f"Bearer {self.token}"

    async def _lease(self, request: web.Request) -> web.Response:
        assert self._allowed(request)
        body = await request.json()
        lease, token, port = body["lease"], secrets.token_hex(8), free_port()
        asked = time.monotonic()
        environment = os.environ | {
            "HEADWAY_ENTRYPOINT": self.entrypoint,
            "HEADWAY_ENVIRONMENT_CONFIG": json.dumps(self.config),
            "HEADWAY_SANDBOX_PORT": str(port),
            "HEADWAY_RUNNER": "child",
            # One file for each lease, since all sandboxes share this machine's files.
            "HEADWAY_EPISODE_FILE": str(self.episodes / f"{lease}.json"),
            "PYTHONPATH": os.pathsep.join([str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "headway_sandbox.server", env=environment, cwd=self.folder
        )
        self.leased[lease] = process
        self.total += 1
        self.peak = max(self.peak, len(self.leased))
        url = f"http://127.0.0.1:{port}"
        await self._bind(url, lease, token, time.time() + body["deadline_seconds"])
        self.bound.add(lease)
        waited = time.monotonic() - asked
        return web.json_response(
            {
                "lease": lease,
                "pod": f"process-{process.pid}",
                "url": url,
                "token": token,
                "waited_seconds": waited,
            },
            status=201,
        )

    async def _bind(self, url: str, lease: str, token: str, deadline: float) -> None:
        body = {"lease": lease, "token": token, "deadline": deadline}
        async with asyncio.timeout(START_SECONDS), aiohttp.ClientSession() as http:
            while True:
                try:
                    async with http.post(f"{url}/lease", json=body) as answer:
                        assert answer.status == 204, await answer.text()
                        return
                except aiohttp.ClientConnectionError:
                    await asyncio.sleep(0.02)

    async def _release(self, request: web.Request) -> web.Response:
        assert self._allowed(request)
        await self._end(request.match_info["id"])
        return web.Response(status=204)

    async def _end(self, lease: str) -> None:
        self.bound.discard(lease)
        process = self.leased.pop(lease, None)
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _owner(self, request: web.Request) -> web.Response:
        assert self._allowed(request)
        self.owners.append((await request.json())["owner"])
        for lease in list(self.leased):
            await self._end(lease)
        return web.Response(status=204)

    async def _pool(self, request: web.Request) -> web.Response:
        return web.json_response({"ready": 0, "starting": 0, "leased": len(self.leased), "problem": None})


@asynccontextmanager
async def lease_service(
    folder: Path,
    entrypoint: str,
    token: str,
    episodes: Path | None = None,
    config: dict[str, Any] | None = None,
) -> AsyncIterator[LeaseService]:
    """A running lease service. Its sandboxes end with the block. `episodes` is the folder for the files of
    episodes, by default `folder`. Name another folder if nothing may be written to that one."""
    service = LeaseService(folder, episodes or folder, entrypoint, token, config or {})
    runner = web.AppRunner(service.app())
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    service.url = f"http://127.0.0.1:{port}"
    try:
        yield service
    finally:
        await runner.cleanup()
        for lease in list(service.leased):
            await service._end(lease)
