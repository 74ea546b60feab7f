"""Loads weights into the engine: as a further adapter, as a replacement of all weights, or not at all."""

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
    """Kinds of manifests that this loader accepts."""

    def holds(self, manifest: WeightsManifest) -> bool:
        """Whether no fetch is needed: the engine has the weights, or their files are still on this disk.

        Raises:
            UnusableManifestError: this version cannot be loaded, such as one held with other files.
        """

    async def fetch(self, store: Store, manifest: WeightsManifest, folder: Path) -> None:
        """Download the files into `folder`, which does not exist yet, or make the engine meet the learner.

        Raises:
            UnusableManifestError: the weights are not of this model.
            LearnerNotMetError: the engine could not meet the learner.
            Exception: any error of `download_folder`.
        """

    async def load(self, manifest: WeightsManifest, folder: Path) -> None:
        """Load the weights into the engine.

        Raises:
            EngineError: the engine may hold wrong weights now.
        """

    def model(self, manifest: WeightsManifest) -> str:
        """The model name that requests for these weights use."""

    async def tidy(self) -> None:
        """After a verified load, release weights and files that are no longer needed.

        Raises:
            EngineError: the engine refused, or did not answer.
        """

    async def drop(self, manifest: WeightsManifest) -> None:
        """Remove weights that could not be verified from an engine that continues.

        Raises:
            EngineError: the engine refused, or did not answer.
        """

    async def release(self) -> bool:
        """Release the slot's weights that no request uses. Return whether none are left.

        Raises:
            EngineError: the engine refused, or did not answer.
        """


class BaseLoader:
    """Loads nothing: the engine serves only the base model, which it loaded at its start."""

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
    """Loads adapters beside each other, each version with its own name and folder. It accepts the base model
    too, which needs no loading."""

    kinds: tuple[str, ...] = ("lora", "base")

    def __init__(self, engine: Engine, max_rank: int, slot: str = POLICY, keep: int = KEEP_ADAPTERS) -> None:
        """Create a loader of `slot`. The `keep` newest versions stay loaded, even if no request uses them."""
        self._engine = engine
        self._max_rank = max_rank
        self._slot = slot
        self._keep = keep
        self._adapters = Adapters()
        self._folders: dict[PolicyVersion, Path] = {}
        """Folders of the adapters that are loaded or draining."""
        self._files: dict[PolicyVersion, list[FileDigest]] = {}
        """Files in the folder of each version."""
        self._doubtful: set[PolicyVersion] = set()
        """Versions that failed to verify and to unload. The engine may hold them, so their folders stay."""

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
    """Replaces all weights of the engine. Requests in flight pause, then continue with the new weights. Until
    the first load the engine has the base model."""

    kinds: tuple[str, ...] = ("full", "delta", "direct", "base")

    def __init__(
        self, engine: Engine, expected: dict[str, TensorHeader], learner: LearnerClient | None = None
    ) -> None:
        """Create a loader of full weights.

        Args:
            engine: the engine whose weights are replaced.
            expected: the base model's tensors, which every checkpoint must have.
            learner: client of the learner, for manifests whose weights are in the learner's memory.
        """
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
        # The canary is an ordinary request, so the engine must run. Until the canary passes, the state is not
        # ready. If it fails, the server kills the engine, so requests in flight get no answer.
        await self._engine.resume()
        self._previous, self._current = self._current, VersionOnDisk(manifest.version, folder)

    def model(self, manifest: WeightsManifest) -> str:
        return BASE_MODEL

    async def tidy(self) -> None:
        if self._previous is not None:
            shutil.rmtree(self._previous.folder)
        self._previous = None

    async def drop(self, manifest: WeightsManifest) -> None:
        """Never called: after an unverified load of full weights, the engine is killed."""
        raise AssertionError(f"{manifest.version} cannot be removed from the engine")

    async def release(self) -> bool:
        """Release nothing: the engine has no other weights."""
        return True


def _model_files(manifest: WeightsManifest) -> list[str]:
    """Names of the files with the whole model's tensors that `fetch` writes."""
    whole = manifest.chain[0] if manifest.chain else manifest
    return tensor_files(whole.files)
