"""Surrogate losses: one number for each token, to be minimized, before any reduction.

All take the ratio, log-probability and advantage of each action token, and bounds. The bounds apply to the
ratio itself: they are not distances from 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from headway_api.objective import SEQUENCE_LOSSES
from headway_trainer.objective.registry import Table


@dataclass(frozen=True)
class RatioBounds:
    """Bounds of the ratio."""

    low: float = 0.0
    high: float = float("inf")
    dual: float | None = None
    """Upper bound of the ratio for negative advantages (dual clip); None if there is no such bound."""


LossFunction = Callable[[Tensor, Tensor, Tensor, RatioBounds], Tensor]
"""Ratio, new log-probability and advantage of each token, and bounds -> its loss."""
ClippedFunction = Callable[[Tensor, Tensor, RatioBounds], Tensor]
"""Ratio and advantage of each token, and bounds -> whether a bound acts on the token."""


def never_clipped(ratio_T: Tensor, advantage_T: Tensor, bounds: RatioBounds) -> Tensor:
    """All false: no bound acts on a token."""
    return torch.zeros_like(ratio_T, dtype=torch.bool)


def beyond_bound(ratio_T: Tensor, advantage_T: Tensor, bounds: RatioBounds) -> Tensor:
    """Tokens whose ratio is beyond the bound in the direction of their advantage, or beyond the dual bound.
    They have no gradient."""
    negative_T = ratio_T < bounds.low
    if bounds.dual is not None:
        negative_T = negative_T | (ratio_T > bounds.dual)
    return torch.where(advantage_T > 0, ratio_T > bounds.high, negative_T & (advantage_T < 0))


def above_high(ratio_T: Tensor, advantage_T: Tensor, bounds: RatioBounds) -> Tensor:
    """Tokens whose ratio, as a weight, is cut to `high`. They keep a gradient."""
    return ratio_T > bounds.high


@dataclass(frozen=True)
class Surrogate:
    """A loss, and which tokens its bounds act on."""

    loss: LossFunction
    clipped: ClippedFunction


SURROGATES: Final[Table[Surrogate]] = Table("spec.algorithm.loss", reserved=SEQUENCE_LOSSES)


def surrogate(name: str, clipped: ClippedFunction = never_clipped) -> Callable[[LossFunction], LossFunction]:
    """Register a loss. `clipped` selects the tokens that `training/clip_fraction` counts."""

    def register(function: LossFunction) -> LossFunction:
        SURROGATES.add(name, Surrogate(function, clipped))
        return function

    return register


@surrogate("importance_sampling")
def importance_sampling_loss(
    ratio_T: Tensor, new_T: Tensor, advantage_T: Tensor, bounds: RatioBounds
) -> Tensor:
    """-ratio * A: unbiased and unbounded. It ignores the bounds."""
    return -ratio_T * advantage_T


@surrogate("ppo", beyond_bound)
def ppo_loss(ratio_T: Tensor, new_T: Tensor, advantage_T: Tensor, bounds: RatioBounds) -> Tensor:
    """-min(ratio A, clip(ratio, low, high) A) (arXiv 1707.06347).

    With a dual bound c, the loss is at most -c A if A < 0 (arXiv 1912.09729).
    """
    loss_T = -torch.minimum(ratio_T * advantage_T, ratio_T.clamp(bounds.low, bounds.high) * advantage_T)
    if bounds.dual is None:
        return loss_T
    return torch.where(advantage_T < 0, torch.minimum(loss_T, -bounds.dual * advantage_T), loss_T)


@surrogate("cispo", above_high)
def cispo_loss(ratio_T: Tensor, new_T: Tensor, advantage_T: Tensor, bounds: RatioBounds) -> Tensor:
    """-stopgrad(min(ratio, high)) * A * new (arXiv 2506.13585).

    Only the upper bound acts. Users of SageMaker MTRL, Amazon's multi-turn RL, write the bounds 1.0 and 6.0.
    A lower bound of 1.0 would raise every weight below 1 to 1.
    """
    return -ratio_T.detach().clamp(max=bounds.high) * advantage_T * new_T
