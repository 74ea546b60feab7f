"""How the engine is made to take weights: as one more adapter, or in place of all it holds."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from pathlib import Path
from typing import Protocol

from headway_api.logs import event
from headway_api.model_names import BASE_MODEL, adapter_name
from headway_api.records import PolicyVersion, WeightsManifest
from headway_api.store import Store, download_folder
from headway_api.weights_format import DIGESTS_FILE
from headway_rollout.engine import Engine, NotJoined
from headway_rollout.launch import KEEP_ADAPTERS
from headway_rollout.weights import chain
from headway_rollout.weights.adapters import Adapters
from headway_rollout.weights.chain import Held
from headway_rollout.weights.checks import (
    TensorHeader,
    Unusable,
    check_full,
    check_lora,
    read_headers,
    tensor_files,
)
from headway_rollout.weights.learner import HEADER_FILE, Learner

log = logging.getLogger(__name__)


class Loader(Protocol):
    """One way of taking weights. `fetch` does not touch the engine; `load` does."""

    kinds: tuple[str, ...]
    """Of manifests that it takes."""

    def holds(self, version: PolicyVersion) -> bool:
        """The engine has it already, so that nothing need be fetched."""

    async def fetch(self, store: Store, manifest: WeightsManifest, folder: Path) -> None:
        """Bring the files into `folder`, which is not there yet, or have the engine meet who has the weights.

        Raises `Unusable` where they are not this model's, what `download_folder` raises, and `NotJoined`."""

    async def load(self, manifest: WeightsManifest, folder: Path) -> None:
        """Raises `EngineRefused`, after which the engine is not to be trusted."""

    def model(self, version: PolicyVersion) -> str:
        """Model name of requests for `version`."""

    async def tidy(self) -> None:
        """After a verified load: let go of what is no longer needed."""


class LoraLoader:
    """Adapters side by side, one name and one folder a version."""

    kinds: tuple[str, ...] = ("lora",)

    def __init__(self, engine: Engine, max_rank: int) -> None:
        self._engine = engine
        self._max_rank = max_rank
        self._adapters = Adapters()
        self._folders: dict[PolicyVersion, Path] = {}

    def holds(self, version: PolicyVersion) -> bool:
        return self._adapters.holds(version)

    async def fetch(self, store: Store, manifest: WeightsManifest, folder: Path) -> None:
        await asyncio.to_thread(self._download, store, manifest, folder)

    def _download(self, store: Store, manifest: WeightsManifest, folder: Path) -> None:
        download_folder(store, manifest.uri, folder, manifest.files)
        config = folder / "adapter_config.json"
        if not config.exists():
            raise Unusable("the manifest names no adapter_config.json")
        try:
            content = json.loads(config.read_text())
        except ValueError as error:
            raise Unusable(f"adapter_config.json is not JSON: {error}") from error
        check_lora(content, read_headers(folder, tensor_files(manifest.files)), self._max_rank)

    async def load(self, manifest: WeightsManifest, folder: Path) -> None:
        version = manifest.version
        if not self.holds(version):
            self._folders[version] = folder
            await self._engine.load_adapter(adapter_name(version), str(folder))
        self._adapters = self._adapters.added(version)

    def model(self, version: PolicyVersion) -> str:
        return adapter_name(version)

    async def tidy(self) -> None:
        named = await self._engine.adapters_in_use()
        in_use = {version for version in self._folders if adapter_name(version) in named}
        self._adapters, retirement = self._adapters.retire(in_use, KEEP_ADAPTERS)
        for version in retirement.unload:
            await self._engine.unload_adapter(adapter_name(version))
            event(log, "adapter unloaded", version=str(version))
        for version in retirement.delete:
            shutil.rmtree(self._folders.pop(version))
            event(log, "adapter deleted", version=str(version))


class FullLoader:
    """Every weight replaced in place: the requests in flight wait, then go on under the new ones."""

    kinds: tuple[str, ...] = ("full", "delta", "direct")

    def __init__(
        self, engine: Engine, expected: dict[str, TensorHeader], learner: Learner | None = None
    ) -> None:
        """`learner` hands over weights that a manifest says are in its memory."""
        self._engine = engine
        self._expected = expected
        self._learner = learner
        self._held: Held | None = None
        self._previous: Held | None = None

    def holds(self, version: PolicyVersion) -> bool:
        return self._held is not None and version == self._held.version

    async def fetch(self, store: Store, manifest: WeightsManifest, folder: Path) -> None:
        if manifest.direct is not None and self._learner is not None:
            try:
                await self._learner.meet(manifest.direct, folder, self._engine, self._expected)
                return
            except NotJoined as error:
                if not manifest.whole:
                    raise
                event(log, "learner not joined", logging.WARNING, why=str(error), instead=manifest.uri)
        await asyncio.to_thread(self._download, store, manifest, folder)

    def _download(self, store: Store, manifest: WeightsManifest, folder: Path) -> None:
        chain.fetch(store, manifest, folder, self._held)
        check_full(self._expected, read_headers(folder, _model_files(manifest)))

    async def load(self, manifest: WeightsManifest, folder: Path) -> None:
        if self.holds(manifest.version):
            return
        where, version = str(folder), str(manifest.version)
        await self._engine.pause()
        if (folder / HEADER_FILE).exists():
            await self._engine.take_joined(where, HEADER_FILE, version)
        else:
            digests = DIGESTS_FILE if (folder / DIGESTS_FILE).exists() else None
            await self._engine.update_weights(where, _model_files(manifest), digests, version)
        # The canary is a request like any other and waits for this; until it has passed, the state says
        # that the server is not ready, and a server that fails takes its requests in flight with it.
        await self._engine.resume()
        self._previous, self._held = self._held, Held(manifest.version, folder)

    def model(self, version: PolicyVersion) -> str:
        return BASE_MODEL

    async def tidy(self) -> None:
        if self._previous is not None:
            shutil.rmtree(self._previous.folder)
        self._previous = None


def _model_files(manifest: WeightsManifest) -> list[str]:
    """Files with tensors of the whole model that `fetch` leaves."""
    whole = manifest.chain[0] if manifest.chain else manifest
    return tensor_files(whole.files)
