"""Writes all weights in Hugging Face layout, with configuration and tokenizer: a complete model to serve."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

from torch import Tensor, nn

ONE_FILE: Final = "100TB"
TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)


def write(model: nn.Module, tensors: dict[str, Tensor], folder: Path, base_folder: Path) -> None:
    """Write model.safetensors, config.json, and the base model's tokenizer files."""
    saved: Any = model
    saved.save_pretrained(folder, state_dict=tensors, max_shard_size=ONE_FILE)
    for name in TOKENIZER_FILES:
        if (base_folder / name).exists():
            shutil.copyfile(base_folder / name, folder / name)


def tensors(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that `write` puts into model.safetensors, by their names in that file, without writing it.

    The function repeats the steps of transformers' `save_pretrained`, which can only write files.
    """
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    saved: Any = model
    kept = {name: one for name, one in tensors.items() if name not in (saved._keys_to_ignore_on_save or ())}
    found = revert_weight_conversion(saved, remove_tied_weights_from_state_dict(kept, saved))
    return {name: tensor.contiguous() for name, tensor in found.items()}
