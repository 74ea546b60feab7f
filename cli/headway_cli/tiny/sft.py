"""Creates the tiny model, and trains it on episodes for a given time: supervised fine-tuning (SFT)."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headway_cli.tiny.speech import END, PAD, SPECIAL, TokenizedEpisode

if TYPE_CHECKING:
    import torch

BATCH: Final = 8
"""Number of episodes in a step."""
SPREAD: Final = 0.05
"""Initial standard deviation of the weights. With the usual 0.02 such a model needs twice as many steps to
learn to copy a word."""
RATE: Final = 2e-3
"""Highest learning rate."""
FEWEST_STEPS: Final = 40
"""Minimum steps of a training. With fewer steps the model learns nothing."""
STEPS_A_SECOND: Final = 15
"""Maximum steps per second of the given time, which a machine with two cores reaches. More steps would teach
the mistakes so well that a short job could not correct them."""
WARM_UP: Final = 0.05
"""Share of the time in which the learning rate rises."""
IGNORED_LABEL: Final = -100
"""Label of a token that has no loss."""
LAST: Final = 10
"""Number of last steps whose mean loss is reported."""
EVERY_SECONDS: Final = 10.0
"""Seconds between two reports of the loss."""


@dataclass(frozen=True)
class SftExample:
    """An episode to train on."""

    episode: TokenizedEpisode
    weight: float
    """How often the episode is drawn, relative to the others."""


@dataclass(frozen=True)
class SftResult:
    """The result of the training."""

    steps: int
    first_loss: float
    """Mean negative log-likelihood of an assistant's token, in nats, in the first step."""
    last_loss: float
    """Mean negative log-likelihood of an assistant's token, in nats, in the last steps."""


def untrained(vocabulary: int, context: int, seed: int) -> Any:
    """A Qwen3 model of some hundred thousand weights, drawn from `seed`.

    vLLM's CPU kernels support its head size.

    Args:
        vocabulary: number of tokens of the model's tokenizer.
        context: maximum tokens of an episode.
        seed: seed of the random weights.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=context,
        rope_theta=10000.0,
        initializer_range=SPREAD,
        tie_word_embeddings=True,
        use_cache=True,
        bos_token_id=None,
        eos_token_id=SPECIAL.index(END),
        pad_token_id=SPECIAL.index(PAD),
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def rate_at(share: float) -> float:
    """Learning rate after `share` of the training, from 0 to 1: a short linear rise, then a cosine to 0."""
    if share < WARM_UP:
        return RATE * max(share, 0.01) / WARM_UP
    return RATE * (1 + math.cos(math.pi * min(share, 1.0))) / 2


def batch_of(examples: Sequence[SftExample]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and labels, both of shape (B, L): a row for each episode, padded on the right."""
    import torch

    width = max(len(example.episode.tokens) for example in examples)
    tokens = torch.zeros(len(examples), width, dtype=torch.long)
    labels = torch.full((len(examples), width), IGNORED_LABEL)
    for row, example in enumerate(examples):
        ids = torch.tensor(example.episode.tokens)
        tokens[row, : len(ids)] = ids
        labels[row, : len(ids)] = torch.where(torch.tensor(example.episode.mask) == 1, ids, IGNORED_LABEL)
    return tokens, labels


def shared(examples: Sequence[SftExample]) -> int:
    """Number of leading tokens, before the assistant's first token, that are equal in all episodes."""
    first = examples[0].episode.tokens
    # The token just before the assistant's first token predicts it, so it is not shared but computed for each
    # episode.
    common = min(example.episode.mask.index(1) for example in examples) - 1
    differing = (
        at for at in range(common) if any(example.episode.tokens[at] != first[at] for example in examples)
    )
    return next(differing, max(common, 0))


def loss_of(model: Any, tokens: torch.Tensor, labels: torch.Tensor, alike: int = 0) -> torch.Tensor:
    """Mean negative log-likelihood of the labels, in nats.

    Args:
        model: the model.
        tokens: token ids, of shape (B, L).
        labels: token ids or IGNORED_LABEL, of shape (B, L).
        alike: number of leading tokens without loss that all rows share. They are computed once for all rows.
    """
    from torch.nn.functional import cross_entropy
    from transformers import DynamicCache

    cache = None
    if alike:
        cache = DynamicCache()
        model.model(input_ids=tokens[:1, :alike], past_key_values=cache, use_cache=True)
        cache.batch_repeat_interleave(len(tokens))
    output = model.model(input_ids=tokens[:, alike:], past_key_values=cache, use_cache=bool(alike))
    following = labels[:, alike + 1 :]
    labelled = following != IGNORED_LABEL
    return cross_entropy(model.lm_head(output.last_hidden_state[:, :-1][labelled]), following[labelled])


def train(
    model: Any,
    examples: Sequence[SftExample],
    seconds: float,
    seed: int,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> SftResult:
    """Train the model for `seconds`.

    At least `FEWEST_STEPS` are taken, even if a busy machine needs more time. A machine that takes more than
    `STEPS_A_SECOND` ends earlier.
    """
    import torch

    # All threads of an operation wait for the slowest one. On a busy machine, half as many threads are
    # faster.
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
    drawn = random.Random(f"{seed}/lessons")
    weights, alike = [example.weight for example in examples], shared(examples)
    model.train()
    began, reported, losses, share = clock(), clock(), list[float](), 0.0
    while share < 1:
        for group in optimizer.param_groups:
            group["lr"] = rate_at(share)
        loss = loss_of(model, *batch_of(drawn.choices(examples, weights, k=BATCH)), alike)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        taken = len(losses)
        share = max((clock() - began) / seconds, taken / (seconds * STEPS_A_SECOND))
        share = min(share, taken / FEWEST_STEPS)
        if clock() > reported + EVERY_SECONDS:
            reported = clock()
            say(f"taught {len(losses)} steps, loss {losses[-1]:.3f}")
    model.eval()
    last = losses[-LAST:]
    return SftResult(len(losses), losses[0], sum(last) / len(last))


def save(model: Any, folder: Path) -> None:
    """Write weights and configuration in Hugging Face layout, like `save_pretrained`.

    `save_pretrained` itself would import DeepSpeed if it is installed, which takes seconds.
    """
    from safetensors.torch import save_file

    weights = {name: weight.contiguous() for name, weight in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
