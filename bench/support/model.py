"""Models with random weights for benchmarks, with Qwen3's shape and template, and turns of a known length.

The models never end a turn by themselves, and sample only printable text. So every turn has exactly its
maximum number of tokens, and both sides of a comparison do the same work. All embeddings share a direction,
which the residual stream keeps. The output rows of forbidden tokens point in the opposite direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiny_model import VOCABULARY
from toy_tokenizer import QWEN3_TEMPLATE, tokenizer

SHARED = 4.0
"""Length of the shared direction, relative to the mean norm of the embeddings."""
AGAINST = 4.0


@dataclass(frozen=True)
class Size:
    """The shape of a model."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int

    @property
    def parameters(self) -> int:
        """Number of weights in the matrices, including embeddings and head."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.inner) + 2 * VOCABULARY * self.hidden


TINY = Size(hidden=128, layers=2, heads=4, kv_heads=2, head_dim=32, inner=256)
SMALL = Size(hidden=384, layers=6, heads=6, kv_heads=1, head_dim=64, inner=1024)


def configuration(size: Size, vocabulary: int, *, eos: int | None = None, pad: int | None = None) -> Any:
    """The configuration of a Qwen3 model of this shape, in float32 with untied embeddings."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.head_dim,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=pad,
        dtype="float32",
    )


def write_model(folder: Path, size: Size, *, seed: int = 0) -> Path:
    """Write config, weights (float32, untied) and tokenizer. Return `folder`."""
    import torch
    from transformers import Qwen3ForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    tok = tokenizer(folder, QWEN3_TEMPLATE)
    tok.save_pretrained(folder)
    config = configuration(size, VOCABULARY, eos=tok.eos_token_id, pad=tok.pad_token_id)
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    direction = torch.ones(size.hidden) / size.hidden**0.5
    embeddings, head = model.get_input_embeddings().weight.data, model.get_output_embeddings().weight.data
    embeddings += SHARED * embeddings.norm(dim=1).mean() * direction
    banned = [i for i in range(VOCABULARY) if not _printable(tok.decode([i]))]
    banned += list(tok.all_special_ids) + [i for token, i in tok.get_added_vocab().items() if token]
    head[banned] = -AGAINST * direction
    model.save_pretrained(folder)
    return folder


def _printable(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable()
