"""The ways to publish weights: as an adapter, in full, as deltas, or directly from the learner's memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from torch import Tensor, nn

from headway_api.exits import JobError
from headway_api.records import Canary, DirectSource, FileDigest, PolicyVersion, WeightsLink, WeightsManifest
from headway_api.store import Store, upload_folder
from headway_api.weights_format import DELTA_FILE, DIGESTS_FILE, MODEL_FILE
from headway_trainer.publish import codec, full, lora
from headway_trainer.publish.sender import Sender


@dataclass(frozen=True)
class Published:
    """The published weights, as fields of `WeightsManifest`."""

    kind: Literal["lora", "full", "delta", "direct"]
    files: list[FileDigest]
    chain: list[WeightsLink] = field(default_factory=list)
    direct: DirectSource | None = None

    def manifest(self, uri: str, version: PolicyVersion, canary: Canary) -> WeightsManifest:
        """The manifest of `version`, whose folder is `uri`."""
        return WeightsManifest(
            version=version,
            kind=self.kind,
            uri=uri,
            files=self.files,
            chain=self.chain,
            direct=self.direct,
            canary=canary,
        )


class WeightPublisher(Protocol):
    """One way to publish weights. Only rank 0 calls it."""

    def publish(
        self, store: Store, uri: str, version: PolicyVersion, tensors: dict[str, Tensor]
    ) -> Published:
        """Publish `tensors`: the trained ones or all, by their names in the model. `uri` is the version's
        folder.

        Servers can fetch them once this method returns. A second call for the same version is harmless.
        """


class LoraPublisher:
    """Publishes the adapter."""

    def __init__(self, model: nn.Module, base: str, scratch: Path) -> None:
        self._model = model
        self._base = base
        self._scratch = scratch

    def publish(
        self, store: Store, uri: str, version: PolicyVersion, tensors: dict[str, Tensor]
    ) -> Published:
        folder = _empty(self._scratch)
        lora.write(self._model, tensors, folder, self._base)
        return Published("lora", upload_folder(store, folder, uri))


class FilePublisher:
    """Publishes all weights of every version as files."""

    def __init__(self, model: nn.Module, base_folder: Path, scratch: Path) -> None:
        self._model = model
        self._base_folder = base_folder
        self._scratch = scratch

    def publish(
        self, store: Store, uri: str, version: PolicyVersion, tensors: dict[str, Tensor]
    ) -> Published:
        folder = _empty(self._scratch)
        write_whole(self._model, tensors, folder, self._base_folder)
        return Published("full", upload_folder(store, folder, uri))


class DeltaPublisher:
    """Publishes the changes since the last version. It publishes all weights if a delta would not be smaller.

    It also does so once a chain of deltas is long enough, and for steps that people may want to serve. The
    last version is kept in files of this process's scratch folder. So a learner that has just started
    publishes all weights first.
    """

    def __init__(
        self,
        model: nn.Module,
        base_folder: Path,
        scratch: Path,
        *,
        full_every: int,
        whole: Callable[[int], bool],
    ) -> None:
        """
        Args:
            full_every: maximum versions in a chain: a full one and the deltas built on it.
            whole: says whether a step's weights must be published in full, whatever their size.
        """
        self._model = model
        self._base_folder = base_folder
        self._next, self._current, self._delta = scratch / "next", scratch / "held", scratch / "delta"
        self._full_every = full_every
        self._whole = whole
        self._chain: list[WeightsLink] = []
        """The chain that ends with the version in `_current`; empty if no version is kept there."""

    def publish(
        self, store: Store, uri: str, version: PolicyVersion, tensors: dict[str, Tensor]
    ) -> Published:
        write_whole(self._model, tensors, _empty(self._next), self._base_folder)
        chain, folder = self._chain, self._next
        # If anything fails from here on, the next version is published in full.
        self._chain = []
        if builds_on(chain, version, self._full_every) and not self._whole(version.step) and self._smaller():
            folder = self._delta
        else:
            chain = []
        files = upload_folder(store, folder, uri)
        shutil.rmtree(self._current, ignore_errors=True)
        self._next.rename(self._current)
        self._chain = [*chain, WeightsLink(version=version, uri=uri, files=files)]
        return Published("delta" if chain else "full", files, chain)

    def _smaller(self) -> bool:
        """Write the delta, if the layouts match. Return whether it exists and is smaller than the model."""
        delta, model = _empty(self._delta) / DELTA_FILE, self._next / MODEL_FILE
        try:
            codec.write_delta(self._current / MODEL_FILE, model, delta)
        except codec.LayoutMismatchError:
            return False
        shutil.copyfile(self._next / DIGESTS_FILE, self._delta / DIGESTS_FILE)
        return delta.stat().st_size < model.stat().st_size


class DirectPublisher:
    """Publishes weights from the learner's memory, and for some steps as files too."""

    def __init__(
        self,
        model: nn.Module,
        base_folder: Path,
        scratch: Path,
        sender: Sender,
        *,
        whole: Callable[[int], bool],
    ) -> None:
        """`whole` says for which steps the weights are also written to the store."""
        self._model = model
        self._files = FilePublisher(model, base_folder, scratch)
        self._sender = sender
        self._whole = whole

    def publish(
        self, store: Store, uri: str, version: PolicyVersion, tensors: dict[str, Tensor]
    ) -> Published:
        made = full.tensors(self._model, tensors)
        files = self._files.publish(store, uri, version, tensors).files if self._whole(version.step) else []
        source = self._offer(made)
        return Published("full" if files else "direct", files, direct=source)

    def offer_again(self, tensors: dict[str, Tensor], published: WeightsManifest) -> None:
        """Offer `tensors` as the version `published`, which an earlier process published.

        Raises:
            JobError: `WeightsDiffer`: they are not the weights that the earlier process published.
        """
        source = self._offer(full.tensors(self._model, tensors))
        if published.direct is None or source.header != published.direct.header:
            raise JobError(
                "WeightsDiffer",
                f"the weights restored from the checkpoint are not those published as {published.version}: "
                "digests of their tensors differ; go back to an earlier checkpoint",
            )

    def _offer(self, tensors: dict[str, Tensor]) -> DirectSource:
        header = self._sender.offer(tensors)
        return DirectSource(host=self._sender.host, port=self._sender.port, header=header)


def builds_on(chain: list[WeightsLink], version: PolicyVersion, full_every: int) -> bool:
    """Whether `version` may be a delta on the end of `chain`. The chain must be shorter than `full_every`,
    and end with the previous step in the same incarnation."""
    if not 0 < len(chain) < full_every:
        return False
    last = chain[-1].version
    return (last.incarnation, last.step + 1) == (version.incarnation, version.step)


def served(step: int, evaluated_every: int, checkpoint_every: int) -> bool:
    """Whether people may want to serve the weights of a step other than the last one.

    They may if the step is evaluated. They also may if it has a checkpoint and not every step has one.

    Args:
        evaluated_every: spec.evaluation.everySteps; 0 means never.
        checkpoint_every: spec.checkpoints.everySteps.
    """
    evaluated = evaluated_every > 0 and step % evaluated_every == 0
    return evaluated or (checkpoint_every > 1 and step % checkpoint_every == 0)


def write_whole(model: nn.Module, tensors: dict[str, Tensor], folder: Path, base_folder: Path) -> None:
    """Write all weights with `full.write`, and a file with the digests of their tensors."""
    full.write(model, tensors, folder, base_folder)
    digests = codec.tensor_digests(folder / MODEL_FILE)
    (folder / DIGESTS_FILE).write_text(digests.model_dump_json())


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
