"""Runs inside vLLM: a weight-transfer engine that reads a checkpoint from a folder.

The only module that knows vLLM's internals. `launch.py` names `RegistersFolderEngine` as the worker
extension, so every worker imports this module before it creates its transfer engine.

vLLM's reload packs each layer's weights again as it loads them. One layer is never loaded: an output head
tied to the embeddings. On a GPU it shares their storage and is right by itself; on a CPU its product runs
on a packed copy that was made once, so the head would stay at the old weights while everything answers 200.
`finish_weight_update` packs it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform

BACKEND = "headway-folder"
"""As `launch.TRANSFER_BACKEND` says; the two are held together by a test."""


@dataclass
class NoInit(WeightTransferInitInfo):
    """There is nobody to meet first."""


@dataclass
class Folder(WeightTransferUpdateInfo):
    """A checkpoint in Hugging Face layout, whole."""

    folder: str
    files: list[str] = field(default_factory=list)


class FolderTransferEngine(WeightTransferEngine[NoInit, Folder]):
    """Loads a folder's safetensors files into the live model."""

    init_info_cls = NoInit
    update_info_cls = Folder

    def init_transfer_engine(self, init_info: NoInit) -> None:
        """Nothing to set up."""

    def start_weight_update(self) -> None:
        """Have every layer take checkpoint tensors again."""
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Folder) -> None:
        """Load the files, one tensor in memory at a time."""
        if not update_info.files:
            raise ValueError("no files to load: the update would leave the old weights and answer 200")
        self.model.load_weights(_tensors(Path(update_info.folder), update_info.files))

    def finish_weight_update(self) -> None:
        """Put the loaded weights where the kernels read them."""
        finalize_layerwise_reload(self.model, self.model_config)
        if current_platform.is_cpu():
            _pack_output_heads(self.model)

    def shutdown(self) -> None:
        """Nothing is held."""


def _tensors(folder: Path, files: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for name in files:
        with safe_open(folder / name, framework="pt", device="cpu") as file:
            for key in file.keys():  # noqa: SIM118  safe_open is no mapping
                yield key, file.get_tensor(key)


def _pack_output_heads(model: torch.nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, ParallelLMHead):
            layer.quant_method.process_weights_after_loading(layer)


class RegistersFolderEngine:
    """Worker extension without methods: naming it makes the worker import this module."""


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, FolderTransferEngine)
