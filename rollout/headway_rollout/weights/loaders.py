"""How weights are loaded into the engine: as one more adapter, instead of all weights, or not at all."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Protocol

from headway_api.base_model import read_config
from headway_api.logs import event
from headway_api.model_names import BASE_MODEL, POLICY, adapter_name, name_of
from headway_api.records import FileDigest, PolicyVersion, WeightsManifest
from headway_api.store import Store, download_folder
from headway_api.weights_format import DIGESTS_FILE
from headway_rollout.engine import Engine, LearnerNotMetError
from headway_rollout.launch import KEEP_ADAPTERS
from headway_rollout.weights import chain
from headway_rollout.weights.adapters import Adapters
from headway_rollout.weights.chain import VersionOnDisk
from headway_rollout.weights.checks import (
    TensorHeader,
    UnusableManifestError,
    check_full,
    check_lora,
    read_headers,
    tensor_files,
)
from headway_rollout.weights.learner_client import HEADER_FILE, LearnerClient

log = logging.getLogger(__name__)


class Loader(Protocol):
    """One way to load weights into one slot. `fetch` does not touch the engine; `load` does."""

    kinds: tuple[str, ...]
    """Kinds of manifests that it takes."""

    def holds(self, manifest: WeightsManifest) -> bool:
        """Whether no fetch is needed: the engine has the weights, or their files are still here.

        Raises `UnusableManifestError` if this version had other files.
        """

    async def fetch(self, store: Store, manifest: WeightsManifest, folder: Path) -> None:
        """Download the files into `folder`, which does not exist yet, or make the engine meet the learner.

        Raises `UnusableManifestError` if they are not this model's, what `download_folder` raises, and
        `LearnerNotMetError`.
        """

    async def load(self, manifest: WeightsManifest, folder: Path) -> None:
        """Load the weights. Raises `EngineError`; the engine's copy of them is then not to be trusted."""

    def model(self, manifest: WeightsManifest) -> str:
        """Model name of requests for it."""

    async def tidy(self) -> None:
        """After a verified load, release what is no longer needed."""

    async def drop(self, manifest: WeightsManifest) -> None:
        """After an unverified load in an engine that continues, make it forget these weights. Raises
        `EngineError`."""

    async def release(self) -> bool:
        """Release all that no request uses. Return whether nothing is left. Raises `EngineError`."""


class BaseLoader:
    """The model that the engine loaded when it started: there is nothing to fetch or load."""

    kinds: tuple[str, ...] = ("base",)

    def holds(self, manifest: WeightsManifest) -> bool:
        return True

    async def fetch(self, store: Store, manifest: WeightsManifest, folder: Path) -> None:
        return

    async def load(self, manifest: WeightsManifest, folder: Path) -> None:
        return

    def model(self, manifest: WeightsManifest) -> str:
        return BASE_MODEL

    async def tidy(self) -> None:
        return

    async def drop(self, manifest: WeightsManifest) -> None:
        return

    async def release(self) -> bool:
        return True


class LoraLoader:
    """Adapters side by side, each version with its own name and folder; or their base model."""

    kinds: tuple[str, ...] = ("lora", "base")

    def __init__(self, engine: Engine, max_rank: int, slot: str = POLICY, keep: int = KEEP_ADAPTERS) -> None:
        """The `keep` newest versions stay loaded, whether or not requests use them."""
        self._engine = engine
        self._max_rank = max_rank
        self._slot = slot
        self._keep = keep
        self._adapters = Adapters()
        self._folders: dict[PolicyVersion, Path] = {}
        """Folders of the adapters that are loaded or draining."""
        self._files: dict[PolicyVersion, list[FileDigest]] = {}
        """Files in these folders."""
        self._doubtful: set[PolicyVersion] = set()
        """Versions that the engine may have, because it did not answer: their folders stay."""

    def holds(self, manifest: WeightsManifest) -> bool:
        if manifest.kind == "base":
            return True
        files = self._files.get(manifest.version, manifest.files)
        if files != manifest.files:
            raise UnusableManifestError(
                f"slot {self._slot} has version {manifest.version} with other files; give it another version"
            )
        return manifest.version in self._folders

    async def fetch(self, store: Store, manifest: WeightsManifest, folder: Path) -> None:
        await asyncio.to_thread(self._download, store, manifest, folder)

    def _download(self, store: Store, manifest: WeightsManifest, folder: Path) -> None:
        download_folder(store, manifest.uri, folder, manifest.files)
        config = folder / "adapter_config.json"
        if not config.exists():
            raise UnusableManifestError("the manifest names no adapter_config.json")
        try:
            content = read_config(config)
        except ValueError as error:
            raise UnusableManifestError(f"adapter_config.json is not valid JSON: {error}") from error
        check_lora(content, read_headers(folder, tensor_files(manifest.files)), self._max_rank)

    async def load(self, manifest: WeightsManifest, folder: Path) -> None:
        if manifest.kind == "base":
            return
        version = manifest.version
        if version in self._doubtful:
            await self._unload(version)
        if not self._adapters.holds(version):
            self._folders[version], self._files[version] = folder, manifest.files
            await self._engine.load_adapter(self._name(version), str(folder))
        self._adapters = self._adapters.added(version)

    def _name(self, version: PolicyVersion) -> str:
        return adapter_name(version, self._slot)

    def model(self, manifest: WeightsManifest) -> str:
        return name_of(manifest, self._slot)

    async def tidy(self) -> None:
        await self._retire(self._keep)

    async def release(self) -> bool:
        await self._retire(0)
        return not self._folders

    async def _retire(self, keep: int) -> None:
        named = await self._engine.adapters_in_use()
        in_use = {version for version in self._folders if self._name(version) in named}
        after, retirement = self._adapters.retire(in_use, keep)
        for version in retirement.unload:
            await self._unload(version)
        self._adapters = after
        for version in retirement.delete:
            del self._files[version]
            shutil.rmtree(self._folders.pop(version))
            event(log, "adapter deleted", slot=self._slot, version=str(version))

    async def drop(self, manifest: WeightsManifest) -> None:
        if manifest.kind == "base" or manifest.version not in self._folders:
            return
        self._adapters = self._adapters.added(manifest.version)
        self._doubtful.add(manifest.version)
        await self._unload(manifest.version)

    async def _unload(self, version: PolicyVersion) -> None:
        await self._engine.unload_adapter(self._name(version))
        self._adapters = self._adapters.dropped(version)
        self._doubtful.discard(version)
        event(log, "adapter unloaded", slot=self._slot, version=str(version))


class FullLoader:
    """Replaces every weight in place: requests in flight wait, then continue under the new weights. Until the
    first load the engine has the base model."""

    kinds: tuple[str, ...] = ("full", "delta", "direct", "base")

    def __init__(
        self, engine: Engine, expected: dict[str, TensorHeader], learner: LearnerClient | None = None
    ) -> None:
        """`learner` sends weights that a manifest says are in its memory."""
        self._engine = engine
        self._expected = expected
        self._learner = learner
        self._current: VersionOnDisk | None = None
        self._previous: VersionOnDisk | None = None

    def holds(self, manifest: WeightsManifest) -> bool:
        if manifest.kind == "base":
            if self._current is not None:
                raise UnusableManifestError(
                    f"weights {self._current.version} have replaced the base model; start the server again"
                )
            return True
        return self._current is not None and manifest.version == self._current.version

    async def fetch(self, store: Store, manifest: WeightsManifest, folder: Path) -> None:
        if manifest.direct is not None and self._learner is not None:
            try:
                await self._learner.meet(manifest.direct, folder, self._engine, self._expected)
                return
            except LearnerNotMetError as error:
                if not manifest.whole:
                    raise
                event(log, "learner not joined", logging.WARNING, why=str(error), instead=manifest.uri)
        await asyncio.to_thread(self._download, store, manifest, folder)

    def _download(self, store: Store, manifest: WeightsManifest, folder: Path) -> None:
        chain.fetch(store, manifest, folder, self._current)
        check_full(self._expected, read_headers(folder, _model_files(manifest)))

    async def load(self, manifest: WeightsManifest, folder: Path) -> None:
        if self.holds(manifest):
            return
        where, version = str(folder), str(manifest.version)
        await self._engine.pause()
        if (folder / HEADER_FILE).exists():
            await self._engine.take_joined(where, HEADER_FILE, version)
        else:
            digests = DIGESTS_FILE if (folder / DIGESTS_FILE).exists() else None
            await self._engine.update_weights(where, _model_files(manifest), digests, version)
        # The canary is a request like any other, so the engine must run. Until the canary passes, the state
        # is not ready. A server that fails ends its requests in flight.
        await self._engine.resume()
        self._previous, self._current = self._current, VersionOnDisk(manifest.version, folder)

    def model(self, manifest: WeightsManifest) -> str:
        return BASE_MODEL

    async def tidy(self) -> None:
        if self._previous is not None:
            shutil.rmtree(self._previous.folder)
        self._previous = None

    async def drop(self, manifest: WeightsManifest) -> None:
        """Never called: an unverified load has replaced all other weights, so the engine ends."""
        raise AssertionError(f"{manifest.version} cannot be removed from the engine")

    async def release(self) -> bool:
        """Release nothing: the engine has no other weights."""
        return True


def _model_files(manifest: WeightsManifest) -> list[str]:
    """Files with tensors of the whole model that `fetch` leaves."""
    whole = manifest.chain[0] if manifest.chain else manifest
    return tensor_files(whole.files)
