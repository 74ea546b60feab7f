"""Weights of one version, written where the rollout servers fetch them, with a manifest they can check."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from torch import Tensor

from headway_api.records import FileDigest, PolicyVersion, WeightsManifest
from headway_api.spec.model import ModelSpec
from headway_api.store import Store, upload_folder
from headway_trainer.engine import Engine
from headway_trainer.model import DTYPES, vocabulary
from headway_trainer.policy import Policy
from headway_trainer.publish import full, lora
from headway_trainer.publish.canary import canary
from headway_trainer.ranks import Ranks


class Publisher:
    """Publishes the engine's present weights: the adapter, or all of them."""

    def __init__(
        self, engine: Engine, policy: Policy, spec: ModelSpec, base_folder: Path, scratch: Path, ranks: Ranks
    ) -> None:
        self._engine = engine
        self._policy = policy
        self._spec = spec
        self._base_folder = base_folder
        self._scratch = scratch
        self._ranks = ranks
        self._adapter = spec.effective_lora is not None

    def publish(self, store: Store, uri: str, version: PolicyVersion) -> WeightsManifest:
        """Write and describe the present weights as `version`; collective."""
        proof = canary(self._policy, vocabulary(self._engine.model), self.dtype, self._ranks.device)
        tensors = self._whole()
        files: list[FileDigest] = []
        if self._ranks.first:
            files = upload_folder(store, self._write(tensors), uri)
        return WeightsManifest(
            version=version,
            kind="lora" if self._adapter else "full",
            uri=uri,
            files=self._ranks.share(files),
            canary=proof,
        )

    @property
    def dtype(self) -> torch.dtype:
        """The number format that is published, and that the canary was computed in."""
        return DTYPES[self._spec.dtype]

    def _whole(self) -> dict[str, Tensor]:
        """All published tensors on rank 0, none elsewhere; collective."""
        pairs = self._engine.tensors(trained_only=self._adapter)
        if self._ranks.first:
            return dict(pairs)
        for _ in pairs:
            continue
        return {}

    def _write(self, tensors: dict[str, Tensor]) -> Path:
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(parents=True)
        if self._adapter:
            lora.write(self._engine.model, tensors, self._scratch, self._spec.base)
        else:
            full.write(self._engine.model, tensors, self._scratch, self._base_folder)
        return self._scratch
