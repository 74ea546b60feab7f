"""Surrogate losses: one number a token, to be minimized, before any reduction.

All take the ratio and log-probability of each action token and the advantage of its episode. `low` and
`high` bound the ratio itself; they are not distances from 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

LossFunction = Callable[[Tensor, Tensor, Tensor, float, float], Tensor]
ClippedFunction = Callable[[Tensor, Tensor, float, float], Tensor]


def importance_sampling_loss(
    ratio_T: Tensor, new_T: Tensor, advantage_T: Tensor, low: float, high: float
) -> Tensor:
    """-ratio * A: unbiased and unbounded; the bounds are not used."""
    return -ratio_T * advantage_T


def ppo_loss(ratio_T: Tensor, new_T: Tensor, advantage_T: Tensor, low: float, high: float) -> Tensor:
    """-min(ratio A, clip(ratio, low, high) A) (arXiv 1707.06347), without a dual clip."""
    return -torch.minimum(ratio_T * advantage_T, ratio_T.clamp(low, high) * advantage_T)


def cispo_loss(ratio_T: Tensor, new_T: Tensor, advantage_T: Tensor, low: float, high: float) -> Tensor:
    """-stopgrad(min(ratio, high)) * A * new (arXiv 2506.13585).

    Only the upper bound acts: MTRL users write 1.0 and 6.0, and a lower bound of 1.0 that acted would
    forbid every weight below 1.
    """
    return -ratio_T.detach().clamp(max=high) * advantage_T * new_T


def never_clipped(ratio_T: Tensor, advantage_T: Tensor, low: float, high: float) -> Tensor:
    """No token (boolean)."""
    return torch.zeros_like(ratio_T, dtype=torch.bool)


def beyond_bound(ratio_T: Tensor, advantage_T: Tensor, low: float, high: float) -> Tensor:
    """Tokens whose ratio lies beyond the bound on the side their advantage pushes it to: no gradient."""
    return torch.where(advantage_T > 0, ratio_T > high, (ratio_T < low) & (advantage_T < 0))


def above_high(ratio_T: Tensor, advantage_T: Tensor, low: float, high: float) -> Tensor:
    """Tokens whose weight is cut to `high`: they keep a gradient."""
    return ratio_T > high


@dataclass(frozen=True)
class Surrogate:
    """A loss, and which tokens its bounds act on."""

    loss: LossFunction
    clipped: ClippedFunction


SURROGATES: Final[dict[str, Surrogate]] = {
    "importance_sampling": Surrogate(importance_sampling_loss, never_clipped),
    "ppo": Surrogate(ppo_loss, beyond_bound),
    "cispo": Surrogate(cispo_loss, above_high),
}
"""By `spec.algorithm.loss`."""
