"""Serves the API of a job's role on a port of this machine, as the role itself does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from headway_api.records import WeightsManifest, WeightsState
from headway_rollout.weights.updater import NOTHING
from headway_wire.listening import listening


class Weights:
    """A weight updater that has no weights."""

    def state(self, slot: str) -> WeightsState:
        return NOTHING

    async def take(self, slot: str, manifest: WeightsManifest) -> WeightsState | None:
        raise AssertionError(manifest)

    def release(self, slot: str) -> None:
        return None

    def alive(self) -> bool:
        return True

    async def ready(self) -> bool:
        return True


@dataclass(frozen=True)
class Served:
    url: str
    headers: dict[str, str]
    app: web.Application


@asynccontextmanager
async def serving(app: web.Application, **headers: str) -> AsyncIterator[Served]:
    async with listening(app, 0, host="127.0.0.1", drain=0.1, leave_with_client=True) as server:
        yield Served(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", headers, app)
