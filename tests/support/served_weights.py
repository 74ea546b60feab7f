"""A rollout server without vLLM. Its disk and updater are real, and its engine is scripted."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from versions import version, whole

from headway_api.model_names import POLICY
from headway_api.records import WeightsManifest, WeightsState
from headway_api.store import FileStore, Store
from headway_api.weights_direct import DirectHeader, DirectPlace
from headway_api.weights_format import DIGESTS_FILE, MODEL_FILE
from headway_rollout.engine import Engine, EngineError, LearnerNotMetError
from headway_rollout.weights.checks import read_headers
from headway_rollout.weights.learner_client import LearnerClient
from headway_rollout.weights.loaders import FullLoader
from headway_rollout.weights.slots import Failed, Slots
from headway_rollout.weights.updater import WeightUpdater

if TYPE_CHECKING:
    from torch import Tensor

    from headway_rollout.receiver import Receiver


class ScriptedEngine(Engine):
    """An engine that reads the requested weights, and computes what the canary needs."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.read: list[bytes] = []
        self.answers: Callable[[list[int]], float] = lambda context: [-1.0, -2.0][len(context) - 1]
        self.refuses = False
        self.joins = True
        self.taken: list[dict[str, Tensor]] = []
        self._joined: Receiver | None = None

    async def next_logprob(self, model: str, context: list[int], token: int) -> float:
        return self.answers(context)

    async def pause(self) -> None:
        self.calls.append("pause")

    async def resume(self) -> None:
        self.calls.append("resume")

    async def update_weights(self, folder: str, files: list[str], digests: str | None, version: str) -> None:
        if self.refuses:
            raise EngineError("no")
        assert digests == DIGESTS_FILE
        assert files == [MODEL_FILE]
        self.calls.append(f"update {version}")
        self.read.append((Path(folder) / MODEL_FILE).read_bytes())

    async def join(self, host: str, place: DirectPlace) -> None:
        from torch import device

        from headway_rollout.receiver import Receiver

        if not self.joins:
            raise LearnerNotMetError("no")
        self._joined = await asyncio.to_thread(
            Receiver, host, place, rank=1, size=2, device=device("cpu"), step_seconds=10.0
        )
        self.calls.append("join")

    async def take_joined(self, folder: str, header: str, version: str) -> None:
        if self.refuses:
            raise EngineError("no")
        assert self._joined is not None
        described = DirectHeader.model_validate_json((Path(folder) / header).read_bytes())
        self.taken.append(await asyncio.to_thread(lambda: dict(self._joined.tensors(described))))
        self.calls.append(f"take {version}")


class CountingStore(FileStore):
    """A store that records what was fetched."""

    def __init__(self) -> None:
        self.fetched: list[str] = []

    def download(self, uri: str, path: Path) -> None:
        self.fetched.append("/".join(uri.split("/")[-2:]))
        super().download(uri, path)

    def models(self) -> list[str]:
        """Return the large files fetched since the last call."""
        found = [name for name in self.fetched if name.endswith((".safetensors", ".delta"))]
        self.fetched.clear()
        return found


class Server:
    """One server's disk, engine and slots."""

    def __init__(self, folder: Path, learner: LearnerClient | None = None) -> None:
        self._learner = learner
        self.cache = folder / "cache"
        self.engine = ScriptedEngine()
        self.store = CountingStore()
        self.slots = self._started(self.store)

    def restart(self) -> None:
        """Start again with the base model and an empty disk, as after the process ended."""
        self.slots = self._started(self.store)

    def _started(self, store: Store) -> Slots:
        shutil.rmtree(self.cache, ignore_errors=True)
        base = self.cache.parent / "base"
        if not base.exists():
            whole(base, 0)
        loader = FullLoader(self.engine, read_headers(base / "000000"), self._learner)

        def updater(slot: str, failed: Failed) -> WeightUpdater:
            return WeightUpdater(self.engine, loader, store, self.cache, slot=slot, failed=failed)

        return Slots(updater, 1, POLICY)

    @property
    def state(self) -> WeightsState:
        return self.slots.state(POLICY)

    async def take(self, manifest: WeightsManifest) -> WeightsState:
        return await self.slots.take(POLICY, manifest)

    def copy(self, step: int) -> Path:
        """Return the path of a version's whole model on the server's disk."""
        return self.cache / str(version(step)) / MODEL_FILE

    def held(self) -> set[str]:
        return {file.name for file in self.cache.iterdir()}


class Process:
    """The process that the weight agent runs in, as the agent sees it."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def state(self, slot: str) -> WeightsState:
        return self._server.slots.state(slot)

    async def take(self, slot: str, manifest: WeightsManifest) -> WeightsState | None:
        return await self._server.slots.take(slot, manifest)

    def release(self, slot: str) -> None:
        self._server.slots.release(slot)

    def alive(self) -> bool:
        return True

    async def ready(self) -> bool:
        return not self._server.slots.failed.done()
