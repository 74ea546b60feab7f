"""Publishes the weights of a version for the rollout servers, with a manifest to verify them."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from headway_api.records import PolicyVersion, WeightsManifest
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.store import Store
from headway_api.weights_format import EXPORT_FILE
from headway_trainer.engine import Engine
from headway_trainer.model import DTYPES, vocabulary
from headway_trainer.policy import Policy
from headway_trainer.publish import full
from headway_trainer.publish.backends import (
    DeltaPublisher,
    DirectPublisher,
    FilePublisher,
    LoraPublisher,
    Published,
    WeightPublisher,
    served,
)
from headway_trainer.publish.canary import canary
from headway_trainer.publish.sender import Sender, describe
from headway_trainer.ranks import Ranks


class Publisher:
    """Publishes the engine's current weights: the adapter, or all weights."""

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        spec: RLTrainingJobSpec,
        base_folder: Path,
        scratch: Path,
        ranks: Ranks,
        sender: Sender | None = None,
    ) -> None:
        """`sender` sends weights from memory. Rank 0 has one if the job's spec chooses direct transfers."""
        self._engine = engine
        self._policy = policy
        self._base_folder = base_folder
        self._scratch = scratch
        self._ranks = ranks
        self._dtype = DTYPES[spec.model.dtype]
        self._adapter = spec.model.effective_lora is not None
        assert not ranks.first or (sender is not None) == spec.learner.weights.direct(spec.model)
        self._backend = _backend(spec, engine, base_folder, scratch, sender)

    def publish(self, store: Store, uri: str, version: PolicyVersion) -> WeightsManifest:
        """Publish the current weights as `version`, and return their manifest; collective.

        Once this returns, every file that the manifest names is in the store.
        """
        proof = canary(self._policy, vocabulary(self._engine.model), self._dtype, self._ranks.device)
        tensors = self._whole()
        published: Published | None = None
        if self._ranks.first:
            published = self._backend.publish(store, uri, version, tensors)
        published = self._ranks.share(published)
        assert published is not None
        return published.manifest(uri, version, proof)

    def offer_again(self, resumed: WeightsManifest) -> None:
        """Offer again the version `resumed`, which an earlier process of this job published; collective.

        The engine must hold its weights. If the earlier process sent them from memory, this process does so
        from now on.

        Raises:
            JobError: `WeightsDiffer`: the engine holds other weights.
        """
        if resumed.direct is None:
            return
        tensors = self._whole()
        if isinstance(self._backend, DirectPublisher):
            self._backend.offer_again(tensors, resumed)

    def header(self) -> str | None:
        """The digest that identifies the current full weights in a direct transfer. Only rank 0 gets it, and
        the other ranks get None; collective."""
        tensors = self._whole()
        return describe(full.tensors(self._engine.model, tensors)).sha256 if self._ranks.first else None

    def complete(self, store: Store, newest: WeightsManifest) -> None:
        """Write full weights into the folder of the newest version, which the engine holds; collective.

        A server can then serve the folder directly. Call it when the job is over. It writes `EXPORT_FILE`,
        which marks the folder as complete, last.
        """
        if newest.whole:
            return
        tensors = self._whole()
        if self._ranks.first:
            whole = FilePublisher(self._engine.model, self._base_folder, self._scratch / "whole")
            whole.publish(store, newest.uri, newest.version, tensors)
            store.put(f"{newest.uri}/{EXPORT_FILE}", newest.version.model_dump_json().encode())

    def _whole(self) -> dict[str, Tensor]:
        """All published tensors on rank 0, none elsewhere; collective."""
        pairs = self._engine.tensors(trained_only=self._adapter)
        if self._ranks.first:
            return dict(pairs)
        for _ in pairs:
            continue
        return {}


def _backend(
    spec: RLTrainingJobSpec, engine: Engine, base_folder: Path, scratch: Path, sender: Sender | None
) -> WeightPublisher:
    weights = spec.learner.weights

    def wanted(step: int) -> bool:
        return served(step, spec.evaluation.every_steps, spec.checkpoints.every_steps)

    if spec.model.effective_lora is not None:
        return LoraPublisher(engine.model, spec.model.base, scratch)
    if sender is not None:
        return DirectPublisher(
            engine.model,
            base_folder,
            scratch,
            sender,
            whole=lambda step: step % weights.full_every_steps == 0 or wanted(step),
        )
    if weights.chosen(spec.model.dtype) == "delta":
        return DeltaPublisher(
            engine.model,
            base_folder,
            scratch,
            full_every=weights.full_every_steps,
            whole=wanted,
        )
    return FilePublisher(engine.model, base_folder, scratch)
