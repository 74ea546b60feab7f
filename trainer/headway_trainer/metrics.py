"""Computes the metrics of one step, under the names of `headway_api.metrics`. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from headway_trainer.batch import TrainingBatch
from headway_trainer.step import StepResult


def step_metrics(
    batch: TrainingBatch, updates: Sequence[StepResult], seconds: Mapping[str, float]
) -> dict[str, float]:
    """All values for `StepReport.metrics` of one step, without those that are not finite.

    Args:
        updates: the optimizer steps taken; none if no group had a gradient.
        seconds: durations, by the last part of a `timing_s/` name.
    """
    found = (
        _counts(batch)
        | _advantages(batch)
        | (_objective(updates) if updates else {})
        | {f"timing_s/{name}": value for name, value in seconds.items()}
    )
    return {name: value for name, value in found.items() if math.isfinite(value)}


def without_groups(step: int, epoch: int, seconds: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a step that carried out a directive and trained nothing."""
    found = {"training/epoch": float(epoch), "training/global_step": float(step)}
    return found | {f"timing_s/{name}": value for name, value in seconds.items()}


def _counts(batch: TrainingBatch) -> dict[str, float]:
    rows = [row for group in batch.groups for row in group.rows]
    tokens = sum(row.length for row in rows)
    action = sum(row.action_tokens for row in rows)
    scored = len(batch.advantages)
    trained = sum(group.episodes for group in batch.groups)
    return {
        "training/epoch": batch.epoch,
        "training/global_step": batch.step,
        "training/num_groups": len(batch.group_ids),
        "training/num_trained_groups": len(batch.groups),
        "training/num_trajectories": batch.episodes,
        "training/num_datums": len(rows),
        "training/datums_per_trajectory": batch.rows_seen / scored if scored else 0.0,
        "training/total_tokens": tokens,
        "training/trainable_token_positions": action,
        "training/nontrainable_token_positions": tokens - action,
        "training/trainable_token_ratio": action / tokens if tokens else 0.0,
        "training/action_tokens_mean": action / trained if trained else 0.0,
        "training/obs_tokens_mean": (tokens - action) / trained if trained else 0.0,
        "training/lag_mean": batch.staleness.mean,
        "training/lag_max": batch.staleness.maximum,
    }


def _advantages(batch: TrainingBatch) -> dict[str, float]:
    values = batch.advantages
    if not len(values):
        return {}
    return {
        "rollout/advantage/mean": float(values.mean()),
        "rollout/advantage/std": float(values.std()),
        "rollout/advantage/min": float(values.min()),
        "rollout/advantage/max": float(values.max()),
        "rollout/advantage/n_positive": float(np.count_nonzero(values > 0)),
        "rollout/advantage/n_negative": float(np.count_nonzero(values < 0)),
    }


def _objective(updates: Sequence[StepResult]) -> dict[str, float]:
    weights = np.array([update.action_tokens for update in updates], dtype=np.float64)

    def mean(name: str) -> float:
        return float(np.average([update.tokens[name] for update in updates], weights=weights))

    return {
        "training/updates": len(updates),
        "training/loss": mean("loss"),
        "training/grad_norm": max(update.update.gradient_norm for update in updates),
        "training/learning_rate": updates[-1].update.learning_rate,
        "training/ratio_mean": mean("ratio"),
        "training/ratio_max": max(update.tokens["ratio_max"] for update in updates),
        "training/ratio_min": min(update.tokens["ratio_min"] for update in updates),
        "training/clip_fraction": mean("clipped"),
        "training/entropy": mean("entropy"),
        "training/correction_weight_mean": mean("correction"),
        "training/masked_fraction": mean("masked"),
        "training/reference_kl": mean("divergence"),
        "training/mismatch_kl": mean("k3"),
        "training/mismatch_far_share": mean("far"),
        "training/effective_sample_share": float(
            np.average([_effective(update.tokens) for update in updates], weights=weights)
        ),
        "training/logprob_gap_mean": mean("kl"),
        "training/logprob_gap_max": max(update.tokens["gap_max"] for update in updates),
        "training/micro_batches": sum(update.micro_batches for update in updates),
    }


def _effective(tokens: Mapping[str, float]) -> float:
    """Kish's effective sample size (1965) as a share of the tokens, with weights w = trained / sampled.

    It is (sum w)^2 / (n sum w^2). The mean of w follows from the means of k3 = w - 1 - log w and kl = -log w.
    The result is NaN if the squares of the weights underflow or are not numbers.
    """
    mean, squared = tokens["k3"] + 1 - tokens["kl"], tokens["weight_squared"]
    return mean * mean / squared if squared > 0 else math.nan
