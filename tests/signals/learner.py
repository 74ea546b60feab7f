"""The product's learner on one rank, without its store and its coordinator: batches in, metrics out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headway_api.objective import episode_tokens
from headway_api.records import Batch
from headway_api.spec.training import RLTrainingJobSpec
from headway_trainer import layout
from headway_trainer import model as models
from headway_trainer.batch import mini_batches, training_batch
from headway_trainer.engine import Engine
from headway_trainer.metrics import step_metrics
from headway_trainer.objective.presets import Objective
from headway_trainer.policy import Policy
from headway_trainer.ranks import Ranks
from headway_trainer.step import optimizer_step, refuse_non_finite, with_old

MICRO_BATCH_TOKENS = 4096


class Learner:
    """Model, adapter and optimizer of one run."""

    def __init__(self, spec: RLTrainingJobSpec, base: Path) -> None:
        """Several learners may follow one another in one process."""
        torch.set_num_threads(1)
        self._ranks = one_rank()
        model = models.load(base, spec.model, spec.seed)
        quadratic = layout.quadratic_share(model)
        self._engine = Engine(model, spec.learner.deepspeed, spec.optimizer, self._ranks)
        self._policy = Policy(
            self._engine,
            model,
            temperature=spec.rollout.sampling.temperature,
            frozen=models.reference(base, spec, self._ranks.device),
        )
        layout.choose(self._policy, self._ranks.device, quadratic)

    @property
    def adapter(self) -> Mapping[str, Tensor]:
        """A copy of the trained weights, by name."""
        return dict(self._engine.tensors(trained_only=True))

    def train(self, batch: Batch, spec: RLTrainingJobSpec) -> tuple[dict[str, float], frozenset[str]]:
        """Train one step as `headway_trainer.learner` does, by the current spec.

        Returns:
            What the learner reports, and the ids of the groups that had a gradient.
        """
        self._follow(spec)
        objective = Objective.of(spec.algorithm, episode_tokens(spec))
        taken = training_batch(batch, objective)
        given: dict[str, Any] = {"ranks": self._ranks, "max_tokens": MICRO_BATCH_TOKENS}
        parts = with_old(
            self._policy,
            objective,
            mini_batches(taken, spec.algorithm.updates_per_batch, objective),
            **given,
        )
        updates = [optimizer_step(self._engine, self._policy, objective, rows, **given) for rows in parts]
        refuse_non_finite(updates, batch.step, objective.own_losses)
        trained = frozenset(group for group, tokens in taken.train_tokens.items() if tokens)
        return step_metrics(taken, updates, {}), trained

    def _follow(self, spec: RLTrainingJobSpec) -> None:
        """Apply a change at a step to what a spec fixes for a whole job, to provoke a symptom."""
        self._engine.optimizer = spec.optimizer
        self._policy._temperature = spec.rollout.sampling.temperature


def one_rank() -> Ranks:
    """Set this process up as the only rank."""
    if dist.is_initialized():
        return Ranks(0, 0, 1, None)
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    return Ranks.join()
