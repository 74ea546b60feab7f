"""The rollout server's life: agent up, model fetched, vLLM up, weights taken, until something ends."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import aiohttp
from aiohttp import web

from headway_api import names
from headway_api.exits import JobError, not_final
from headway_api.logs import event
from headway_api.records import WeightsManifest, WeightsState
from headway_api.store import Store, open_store
from headway_api.weights_direct import DirectJoin
from headway_rollout import failures, hang, model
from headway_rollout.agent import application
from headway_rollout.engine import Engine
from headway_rollout.launch import Host, launch
from headway_rollout.process import EngineProcess
from headway_rollout.weights.checks import read_headers
from headway_rollout.weights.keeper import Keeper
from headway_rollout.weights.learner import Learner
from headway_rollout.weights.loaders import FullLoader, LoraLoader

if TYPE_CHECKING:
    from headway_api.config import JobConfig
    from headway_api.spec.lifecycle import OutputSpec

log = logging.getLogger(__name__)

START_SECONDS: Final = 1800.0
"""How long vLLM may take to load the base model."""
POLL_SECONDS: Final = 0.5
REPORT_SECONDS: Final = 3.0
"""How long a server that failed still answers `GET /v1/weights` with the reason before it ends."""
DRAIN_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Settings:
    """Where the process listens and works; every one may be set by environment, for tests side by side."""

    address: str
    engine_port: int
    weights_port: int
    cache: Path

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Settings:
        """`HEADWAY_BIND_ADDRESS`, `HEADWAY_ENGINE_PORT`, `HEADWAY_WEIGHTS_PORT`, `HEADWAY_CACHE_DIR`."""
        return cls(
            address=environ.get("HEADWAY_BIND_ADDRESS", "0.0.0.0"),
            engine_port=int(environ.get("HEADWAY_ENGINE_PORT", names.PORT_ENGINE)),
            weights_port=int(environ.get("HEADWAY_WEIGHTS_PORT", names.PORT_WEIGHTS)),
            cache=Path(environ.get(names.ENV_CACHE, names.CACHE_DIR)),
        )

    def host(self) -> Host:
        """What there is of the machine that the engine's command line depends on."""
        return Host(
            accelerator=Path("/dev/nvidiactl").exists(),
            cores=len(os.sched_getaffinity(0)),
            cache=self.cache,
            address=self.address,
            port=self.engine_port,
            python=sys.executable,
        )


class RolloutServer:
    """The process: vLLM, and the agent that tells what it holds.

    It ends, with the engine, on SIGTERM (normally), when the engine ends or hangs, and when weights could not
    be verified (all retriable); a base model that vLLM cannot load ends it for good.
    """

    def __init__(self, config: JobConfig, token: str, settings: Settings) -> None:
        self._config = config
        self._token = token
        self._settings = settings
        self._engine: Engine | None = None
        self._process: EngineProcess | None = None
        self._keeper: Keeper | None = None

    @property
    def state(self) -> WeightsState:
        return self._keeper.state if self._keeper is not None else WeightsState(version=None, ready=False)

    async def take(self, manifest: WeightsManifest) -> WeightsState | None:
        return await self._keeper.take(manifest) if self._keeper is not None else None

    def alive(self) -> bool:
        return self._process is None or self._process.running

    async def ready(self) -> bool:
        if self._keeper is None or self._engine is None or self._keeper.failed.done():
            return False
        return await self._engine.healthy()

    async def run(self) -> None:
        """Serve until SIGTERM.

        Raises:
            JobError: the process cannot go on.
        """
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        runner = web.AppRunner(application(self, self._token), shutdown_timeout=DRAIN_SECONDS)
        await runner.setup()
        await web.TCPSite(runner, self._settings.address, self._settings.weights_port).start()
        try:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
                await self._until(stopping, self._serve(http))
        finally:
            if self._process is not None:
                await self._process.stop()
            await runner.cleanup()
        event(log, "stopped")

    async def _until(self, stopping: asyncio.Event, work: Coroutine[None, None, None]) -> None:
        """Run `work`, which ends only by raising, until it does or SIGTERM comes."""
        serving, asked = asyncio.create_task(work), asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            serving.cancel()
            asked.cancel()
            await asyncio.wait({serving, asked})
        if not serving.cancelled():
            serving.result()

    async def _serve(self, http: aiohttp.ClientSession) -> None:
        spec, cache, started = self._config.spec, self._settings.cache, time.monotonic()
        # What a container that ran here before had fetched: its engine is gone, nobody will ask for it.
        await asyncio.to_thread(shutil.rmtree, cache / "weights", ignore_errors=True)
        store = await asyncio.to_thread(_open_store, spec.output)
        folder = await asyncio.to_thread(model.fetch, spec.model, store, cache)
        fetched = time.monotonic()
        how = launch(spec, folder, model.read_config(folder), self._settings.host(), os.environ)
        self._process = await EngineProcess.start(how)
        engine = Engine(http, f"http://127.0.0.1:{self._settings.engine_port}")
        await self._started(engine, self._process)
        self._engine, self._keeper = engine, self._make_keeper(engine, store, folder, http)
        event(log, "ready", fetch_seconds=fetched - started, load_seconds=time.monotonic() - fetched)
        await self._watch(engine, self._keeper, self._process)

    async def _started(self, engine: Engine, process: EngineProcess) -> None:
        ended = asyncio.create_task(process.ended())
        deadline = time.monotonic() + START_SECONDS
        try:
            while not await engine.healthy():
                if ended.done():
                    raise failures.before_ready(ended.result(), process.lines)
                if time.monotonic() > deadline:
                    raise JobError(
                        "EngineStartTimedOut",
                        f"vLLM did not answer within {START_SECONDS:.0f} s",
                        permanent=False,
                    )
                await asyncio.wait({ended}, timeout=POLL_SECONDS)
        finally:
            ended.cancel()

    def _make_keeper(self, engine: Engine, store: Store, folder: Path, http: aiohttp.ClientSession) -> Keeper:
        spec = self._config.spec
        lora = spec.model.effective_lora
        if lora is not None:
            loader: LoraLoader | FullLoader = LoraLoader(engine, lora.rank)
        else:
            workers, host = spec.rollout.engine.tensor_parallel_size, self._settings.host()
            join = DirectJoin(workers=workers, accelerated=host.accelerator)
            loader = FullLoader(engine, read_headers(folder), Learner(http, self._token, join))
        return Keeper(engine, loader, store, self._settings.cache / "weights")

    async def _watch(self, engine: Engine, keeper: Keeper, process: EngineProcess) -> None:
        ended, hung = asyncio.create_task(process.ended()), asyncio.create_task(hang.found(engine))
        failed = asyncio.ensure_future(keeper.failed)
        try:
            await asyncio.wait((ended, failed, hung), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            hung.cancel()
        if hung.done():
            keeper.hung(hung.result())
        if keeper.failed.done():
            await process.kill()
            await asyncio.sleep(REPORT_SECONDS)
            raise keeper.failed.result()
        raise failures.after_ready(ended.result(), process.lines)


def _open_store(output: OutputSpec) -> Store:
    with not_final():  # the preflight has used this bucket already
        return open_store(output)
