"""The rollout server's process: starts the weight agent, fetches the base model, starts and watches vLLM."""

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

from headway_api import names
from headway_api.exits import JobError, not_final
from headway_api.keys import Key, Keys
from headway_api.logs import event
from headway_api.model_names import POLICY
from headway_api.records import WeightsManifest, WeightsState
from headway_api.store import Store, open_store
from headway_api.weights_direct import DirectJoin
from headway_rollout import deaths, failures, hang, metrics_port, model
from headway_rollout.agent import application
from headway_rollout.engine import Engine
from headway_rollout.launch import KEEP_ADAPTERS, Host, launch
from headway_rollout.process import EngineProcess
from headway_rollout.weights.checks import read_headers
from headway_rollout.weights.learner_client import LearnerClient
from headway_rollout.weights.loaders import BaseLoader, FullLoader, Loader, LoraLoader
from headway_rollout.weights.slots import Failed, SlotRefusedError, Slots
from headway_rollout.weights.updater import NOTHING, WeightUpdater
from headway_wire.listening import listening

if TYPE_CHECKING:
    from headway_api.config import ServedModel
    from headway_api.spec.lifecycle import OutputSpec

log = logging.getLogger(__name__)

START_SECONDS: Final = 1800.0
"""Maximum seconds that vLLM may take to load the base model."""
POLL_SECONDS: Final = 0.5
ANY_ADDRESS: Final = "0.0.0.0"
REPORT_SECONDS: Final = 3.0
"""Seconds that a failed server still answers `GET /v1/weights` with the reason before it ends."""


@dataclass(frozen=True)
class Settings:
    """The process's address, ports and folder. Environment variables set them, so that several servers can
    run on one machine in tests."""

    address: str
    engine_port: int
    weights_port: int
    metrics_port: int
    cache: Path

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Settings:
        """Read `HEADWAY_BIND_ADDRESS`, `HEADWAY_{ENGINE,WEIGHTS,METRICS}_PORT` and `HEADWAY_CACHE_DIR`."""
        return cls(
            address=environ.get(names.ENV_BIND_ADDRESS, ANY_ADDRESS),
            engine_port=int(environ.get("HEADWAY_ENGINE_PORT", names.PORT_ENGINE)),
            weights_port=int(environ.get("HEADWAY_WEIGHTS_PORT", names.PORT_WEIGHTS)),
            metrics_port=int(environ.get("HEADWAY_METRICS_PORT", names.PORT_ENGINE_METRICS)),
            cache=Path(environ.get(names.ENV_CACHE, names.CACHE_DIR)),
        )

    @property
    def engine_url(self) -> str:
        """URL at which this process reaches vLLM."""
        host = "127.0.0.1" if self.address == ANY_ADDRESS else self.address
        return f"http://{host}:{self.engine_port}"

    def host(self) -> Host:
        """The properties of this machine that vLLM's command line depends on."""
        return Host(
            accelerator=Path("/dev/nvidiactl").exists(),
            cores=len(os.sched_getaffinity(0)),
            cache=self.cache,
            address=self.address,
            port=self.engine_port,
            python=sys.executable,
        )


class RolloutServer:
    """The process: vLLM, and the agent that loads and reports its weights.

    The process ends normally on SIGTERM. It ends with a retriable error if the engine ends or hangs, or if
    the policy's weights cannot be verified. It ends with a permanent error if vLLM cannot load the base
    model. The engine always ends with the process.
    """

    def __init__(
        self,
        served: ServedModel,
        keys: Keys,
        settings: Settings,
        asked: Key = Key.COORDINATOR_TO_ROLLOUT,
    ) -> None:
        """Create a server of `served`. Its weights port and vLLM's port require the key `asked`."""
        self._served = served
        self._keys = keys
        self._key = keys[asked]
        self._settings = settings
        self._engine: Engine | None = None
        self._process: EngineProcess | None = None
        self._slots: Slots | None = None

    def state(self, slot: str) -> WeightsState:
        return self._slots.state(slot) if self._slots is not None else NOTHING

    async def take(self, slot: str, manifest: WeightsManifest) -> WeightsState | None:
        return await self._slots.take(slot, manifest) if self._slots is not None else None

    def release(self, slot: str) -> None:
        if self._slots is not None:
            self._slots.release(slot)

    def alive(self) -> bool:
        return self._process is None or self._process.running

    async def ready(self) -> bool:
        if self._slots is None or self._engine is None or self._slots.failed.done():
            return False
        return await self._engine.healthy()

    async def run(self) -> None:
        """Serve until SIGTERM.

        Raises:
            JobError: the process cannot continue.
        """
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        agent = application(self, self._key)
        shown = metrics_port.application(lambda: self._engine)
        host = self._settings.address
        async with (
            listening(agent, self._settings.weights_port, host=host),
            listening(shown, self._settings.metrics_port, host=host),
        ):
            try:
                # vLLM closes an idle connection after 5 s. A request that reuses the connection at that
                # moment fails, as if the engine had failed. So each request opens its own connection.
                connector = aiohttp.TCPConnector(limit=0, force_close=True)
                async with aiohttp.ClientSession(connector=connector) as http:
                    await self._until(stopping, self._serve(http))
            finally:
                if self._process is not None:
                    await self._process.stop()
        event(log, "stopped")

    async def _until(self, stopping: asyncio.Event, work: Coroutine[None, None, None]) -> None:
        """Run `work` until SIGTERM, or until it raises: it never returns."""
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
        served, cache, started = self._served, self._settings.cache, time.monotonic()
        # An earlier container of this pod may have left weights. Its engine is gone, so nobody needs them.
        await asyncio.to_thread(shutil.rmtree, cache / "weights", ignore_errors=True)
        store = await asyncio.to_thread(_open_store, served.output)
        folder = await asyncio.to_thread(model.fetch, served, store, cache, served.field)
        fetched, described = time.monotonic(), model.read_config(folder, served.field)
        how = launch(served, folder, described, self._settings.host(), os.environ, self._key)
        self._process = await EngineProcess.start(how)
        engine = Engine(http, self._settings.engine_url, self._key)
        await self._started(engine, self._process)
        self._engine, self._slots = engine, self._make_slots(engine, store, folder, http)
        event(log, "ready", fetch_seconds=fetched - started, load_seconds=time.monotonic() - fetched)
        await self._watch(engine, self._slots, self._process)

    async def _started(self, engine: Engine, process: EngineProcess) -> None:
        ended = asyncio.create_task(process.ended())
        deadline = time.monotonic() + START_SECONDS
        try:
            while not await engine.healthy():
                if ended.done():
                    raise failures.before_ready(ended.result(), process.lines, self._served.field)
                if time.monotonic() > deadline:
                    raise JobError(
                        "EngineStartTimedOut",
                        f"vLLM did not answer within {START_SECONDS:.0f} s",
                        permanent=False,
                    )
                await asyncio.wait({ended}, timeout=POLL_SECONDS)
        finally:
            ended.cancel()

    def _make_slots(self, engine: Engine, store: Store, folder: Path, http: aiohttp.ClientSession) -> Slots:
        served, cache = self._served, self._settings.cache / "weights"

        def updater(slot: str, failed: Failed) -> WeightUpdater:
            trained = served.updates and slot == POLICY
            loader = self._loader(slot, engine, folder, http)
            place = cache if slot == POLICY else cache / slot
            return WeightUpdater(
                engine, loader, store, place, slot=slot, failed=failed, final=trained, kill=self._kill
            )

        return Slots(updater, served.adapters, reserved=POLICY if served.updates else None)

    async def _kill(self) -> str | None:
        """End the engine. If a signal had already killed one of its processes, return a sentence about it."""
        assert self._process is not None, "weights are taken by an engine that was started"
        await self._process.kill()
        death = deaths.find(0, self._process.lines)
        return death.sentence if death is not None else None

    def _loader(self, slot: str, engine: Engine, folder: Path, http: aiohttp.ClientSession) -> Loader:
        """The loader for a slot's weights.

        Raises:
            SlotRefusedError: this server has no such slot.
        """
        served, trained = self._served, self._served.updates and slot == POLICY
        if served.lora_rank is not None:
            return LoraLoader(engine, served.lora_rank, slot, KEEP_ADAPTERS if trained else 1)
        if not served.updates:
            return BaseLoader()
        if not trained:
            raise SlotRefusedError(
                f"this server replaces all weights at once, so it has only the slot {POLICY}"
            )
        workers, host = served.rollout.engine.tensor_parallel_size, self._settings.host()
        join = DirectJoin(workers=workers, accelerated=host.accelerator)
        learner = LearnerClient(http, self._keys[Key.ROLLOUT_TO_LEARNER], join)
        return FullLoader(engine, read_headers(folder), learner)

    async def _watch(self, engine: Engine, slots: Slots, process: EngineProcess) -> None:
        ended, hung = asyncio.create_task(process.ended()), asyncio.create_task(hang.found(engine))
        failed = asyncio.ensure_future(slots.failed)
        try:
            await asyncio.wait((ended, failed, hung), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            hung.cancel()
        if hung.done():
            slots.hung(hung.result())
        if slots.failed.done():
            await process.kill()
            await asyncio.sleep(REPORT_SECONDS)
            raise slots.failed.result()
        raise failures.after_ready(ended.result(), process.lines)


def _open_store(output: OutputSpec) -> Store:
    with not_final():  # the preflight has used this bucket, so a failure may pass
        return open_store(output)
