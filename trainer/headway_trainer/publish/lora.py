"""Writes an adapter in PEFT's layout, which vLLM loads."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from headway_api.base_model import HUB
from headway_trainer.model import ADAPTER

WEIGHTS = "adapter_model.safetensors"


def write(model: nn.Module, tensors: dict[str, Tensor], folder: Path, base: str) -> None:
    """Write adapter_model.safetensors and adapter_config.json; `base` is the adapter's base model.

    The configuration names a model of the hub as PEFT and transformers do, so that the folder loads as it is.
    """
    from peft import get_peft_model_state_dict

    adapter = get_peft_model_state_dict(
        model, state_dict=tensors, adapter_name=ADAPTER, save_embedding_layers=False
    )
    save_file(adapter, folder / WEIGHTS, metadata={"format": "pt"})
    config: Any = copy(model.peft_config[ADAPTER])  # type: ignore[index]
    config.base_model_name_or_path = base.removeprefix(HUB)
    config.inference_mode = True
    # Sort the targets: PEFT has a set, whose order differs from process to process.
    config.target_modules = sorted(config.target_modules)
    config.save_pretrained(folder)
