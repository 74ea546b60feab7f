"""The work of the learner's benchmarks: a model with random weights, rows of many turns, and our step on
them."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.support.model import Size, configuration
from headway_api.spec.algorithm import AlgorithmSpec
from headway_api.spec.learner import DeepSpeed, OptimizerSpec
from headway_trainer.batch import LearnerRow, weighted
from headway_trainer.objective.presets import Objective
from headway_trainer.step import StepResult, optimizer_step

Turn = tuple[int, int]
"""Number of given tokens (a prompt or a tool's result), and number of sampled tokens."""
MICRO_BATCH_TOKENS = 4096
RATE = 1e-5


def model_of(size: Size, vocabulary: int) -> Any:
    """A Qwen3 model in float32, with random weights."""
    import torch
    from transformers import Qwen3ForCausalLM

    torch.manual_seed(0)
    config = configuration(size, vocabulary)
    config.use_cache = False
    return Qwen3ForCausalLM(config)


def row(turns: Sequence[Turn], vocabulary: int, *, seed: int, episode: int = 0) -> LearnerRow:
    """An episode as one training row, in which each sampled token is trained once."""
    mask = np.concatenate([np.repeat([False, True], turn) for turn in turns])
    draw = np.random.default_rng(seed)
    return LearnerRow(
        group_id="g",
        tokens=draw.integers(0, vocabulary, len(mask)),
        mask=mask,
        logprobs=np.full(len(mask), -np.log(vocabulary), dtype=np.float32),
        advantages=np.full(len(mask), draw.normal(), dtype=np.float32),
        episode=episode,
    )


def by_turn(turns: Sequence[Turn], vocabulary: int, *, seed: int, episode: int = 0) -> list[LearnerRow]:
    """An episode as one training row per turn. Each row has all earlier turns as context."""
    whole = row(turns, vocabulary, seed=seed, episode=episode)
    rows, start = [], 0
    for given, sampled in turns:
        end = start + given + sampled
        trained = np.arange(end) >= start + given
        rows.append(
            LearnerRow(
                group_id=whole.group_id,
                tokens=whole.tokens[:end],
                mask=trained,
                logprobs=whole.logprobs[:end],
                advantages=whole.advantages[:end],
                episode=episode,
            )
        )
        start = end
    return rows


def ragged(episodes: int, *, seed: int) -> list[list[Turn]]:
    """Turns of episodes as with tools: 2 to 10 per episode, with results and answers of unequal length."""
    draw = random.Random(seed)
    return [
        [
            (draw.randint(96, 160) if turn == 0 else draw.randint(12, 48), draw.randint(12, 48))
            for turn in range(draw.randint(2, 10))
        ]
        for _ in range(episodes)
    ]


class Ours:
    """The product's optimizer step, on one rank."""

    def __init__(self, model: Any) -> None:
        """Changes `model`, which the caller must no longer use."""
        from headway_trainer import layout
        from headway_trainer.engine import Engine
        from headway_trainer.policy import Policy

        self._objective = Objective.of(AlgorithmSpec())
        self.ranks = one_rank()
        quadratic = layout.quadratic_share(model)
        optimizer = OptimizerSpec(learning_rate=RATE, warmup_steps=0)
        self.engine = Engine(model, DeepSpeed(zero_stage=2), optimizer, self.ranks)
        self._policy = Policy(self.engine, model, temperature=1.0)
        self.layout = layout.choose(self._policy, self.ranks.device, quadratic)

    def step(self, rows: Sequence[LearnerRow]) -> StepResult:
        """Take one whole step: plan, forward, backward, clip, AdamW, statistics."""
        return optimizer_step(
            self.engine,
            self._policy,
            self._objective,
            weighted(rows, self._objective),
            ranks=self.ranks,
            max_tokens=MICRO_BATCH_TOKENS,
        )


def one_rank() -> Any:
    """The `Ranks` of this process as the only rank."""
    import torch.distributed as dist

    from headway_trainer.ranks import Ranks

    if dist.is_initialized():
        return Ranks(0, 0, 1, None)
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    return Ranks.join()
