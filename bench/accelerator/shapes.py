"""Models of real shapes with random weights, episodes for them, and the operations that a step needs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bench.accelerator import hardware
from bench.learner.work import Turn, row
from bench.support.model import TINY, Size, configuration
from headway_trainer.batch import LearnerRow


@dataclass(frozen=True)
class Shape:
    """The shape of a model, and the size of its work."""

    name: str
    size: Size
    vocabulary: int
    tied: bool
    episodes: int

    @property
    def layers(self) -> int:
        """Number of weights in the layers' matrices."""
        size = self.size
        attention = size.hidden * size.head_dim * 2 * (size.heads + size.kv_heads)
        return size.layers * (attention + 3 * size.hidden * size.inner)


QWEN = 151936
SMALL = Shape("Qwen3-0.6B", Size(1024, 28, 16, 8, 128, 3072), QWEN, tied=True, episodes=8)
FULL = Shape("Qwen3-1.7B", Size(2048, 28, 16, 8, 128, 6144), QWEN, tied=True, episodes=24)
LORA = Shape("Qwen3-8B", Size(4096, 36, 32, 8, 128, 12288), QWEN, tied=False, episodes=8)


def scaled(shape: Shape) -> Shape:
    """The shape itself, or a tiny shape in a rehearsal."""
    return Shape("a rehearsal", TINY, 512, shape.tied, 6) if hardware.rehearsing() else shape


def model_of(shape: Shape, device: torch.device) -> Any:
    """The model in bfloat16 on the device, with the same weights each time."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    config = configuration(shape.size, shape.vocabulary)
    config.use_cache, config.tie_word_embeddings = False, shape.tied
    with device:
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def episodes(shape: Shape) -> list[LearnerRow]:
    """Episodes of 2 to 10 turns of unequal length, as with tools. Each episode is one training row."""
    draw = random.Random(1)
    low = 8 if hardware.rehearsing() else 1
    made: list[list[Turn]] = [
        [
            (
                draw.randint(300, 700) // low if turn == 0 else draw.randint(50, 400) // low,
                draw.randint(50, 300) // low,
            )
            for turn in range(draw.randint(2, 10))
        ]
        for _ in range(shape.episodes)
    ]
    return [row(turns, shape.vocabulary, seed=n, episode=n) for n, turns in enumerate(made)]


def operations(shape: Shape, rows: Sequence[LearnerRow], adapter: int = 0) -> float:
    """Number of floating-point operations that a step needs.

    It counts no recomputation, no masked half of attention, and the head only for trained tokens.

    Args:
        adapter: number of the adapter's weights, if only the adapter is trained; 0 if all weights are
            trained.
    """
    size, tokens = shape.size, sum(each.length for each in rows)
    trained = sum(each.action_tokens for each in rows)
    frozen = 2.0 * shape.layers * tokens + 2.0 * shape.vocabulary * size.hidden * trained
    pairs = sum(each.length**2 / 2 for each in rows)
    attention = 4.0 * size.layers * size.heads * size.head_dim * pairs
    # The gradients of the inputs cost as much as the forward pass, and so do the gradients of the weights.
    linear = 2 * frozen + 3 * 2.0 * adapter * tokens if adapter else 3 * frozen
    return linear + 3 * attention
