"""Computes the importance ratio: how much likelier sampled tokens are under the new than the old policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from headway_trainer.objective.registry import Table

LOG_RATIO_LIMIT: Final = 20.0
"""A log-ratio is clipped at this distance from 0. e^20 is finite in every dtype that the loss uses."""

RatioFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""New and old log-probabilities, and the training row of each token -> the ratio of each token.

The gradient flows only through the new log-probabilities. A micro-batch has every action token of each of its
training rows.
"""

RATIOS: Final[Table[RatioFunction]] = Table("spec.algorithm.ratio")


def ratio(name: str) -> Callable[[RatioFunction], RatioFunction]:
    """Register a ratio."""

    def register(function: RatioFunction) -> RatioFunction:
        RATIOS.add(name, function)
        return function

    return register


def bounded_exp(log_T: Tensor) -> Tensor:
    """exp of a clipped input, so that the result is finite. Beyond the limit there is no gradient."""
    return torch.exp(log_T.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def row_sum(values_T: Tensor, row_T: Tensor) -> Tensor:
    """For each token, the sum of `values_T` over its training row."""
    return values_T.new_zeros(int(row_T.max()) + 1).index_add(0, row_T, values_T)[row_T]


def row_mean(values_T: Tensor, row_T: Tensor) -> Tensor:
    """For each token, the mean of `values_T` over its training row."""
    return row_sum(values_T, row_T) / torch.bincount(row_T)[row_T]


@ratio("token")
def token_ratio(new_T: Tensor, old_T: Tensor, row_T: Tensor) -> Tensor:
    """exp(new - old), token by token."""
    return bounded_exp(new_T - old_T.detach())


@ratio("sequence")
def sequence_ratio(new_T: Tensor, old_T: Tensor, row_T: Tensor) -> Tensor:
    """The geometric mean of a training row's token ratios, the same for all its tokens (GSPO).

    The paper is arXiv 2507.18071.

    The gradient flows through each token's own log-probability, as in GSPO-token. If the advantage is the
    same throughout a training row, the mean of these gradients is the gradient of that row's ratio.
    """
    log_T = row_mean((new_T - old_T).detach(), row_T)
    return bounded_exp(log_T + new_T - new_T.detach())
