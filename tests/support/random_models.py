"""Models with random weights, of any class of transformers, and rows for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headway_trainer.batch import LearnerRow

CPU = torch.device("cpu")
LENGTHS = (31, 31, 17, 9, 9, 9, 2)
COMMON: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def made(kind: str, **settings: Any) -> Any:
    """A small model with random weights, of the class of transformers that `kind` names."""
    import transformers

    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(**COMMON | settings)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.2)
    return model


def rows_of(lengths: tuple[int, ...] = LENGTHS) -> list[LearnerRow]:
    draw = np.random.default_rng(1)
    return [
        LearnerRow(
            group_id=f"g{index}",
            tokens=draw.integers(0, COMMON["vocab_size"], length),
            mask=np.arange(length) % 3 != 0,
            logprobs=draw.normal(size=length).astype(np.float32),
            advantages=draw.normal(size=length).astype(np.float32),
            episode=index,
            weight=1.0 + index,
        )
        for index, length in enumerate(lengths)
    ]
