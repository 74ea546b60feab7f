"""Estimates a token's divergence from the untrained model, which a job may add to the token's loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torch import Tensor

from headway_trainer.objective.ratio import LOG_RATIO_LIMIT

DivergenceFunction = Callable[[Tensor, Tensor], Tensor]
"""New and reference log-probability of each sampled token -> estimate of KL(new || reference)."""


def k1(new_T: Tensor, reference_T: Tensor) -> Tensor:
    """new - reference: unbiased, but its gradient is only that of new, which is 0 in expectation."""
    return new_T - reference_T


def k2(new_T: Tensor, reference_T: Tensor) -> Tensor:
    """Half the square of new - reference: biased, but on-policy its gradient is that of the divergence."""
    return (new_T - reference_T).square() / 2


def k3(new_T: Tensor, reference_T: Tensor) -> Tensor:
    """exp(reference - new) - 1 - (reference - new): unbiased and never negative. GRPO uses it."""
    log_T = (reference_T - new_T).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return log_T.exp() - 1 - log_T


DIVERGENCES: Final[dict[str, DivergenceFunction]] = {"k1": k1, "k2": k2, "k3": k3}
"""Estimators by their names in `spec.algorithm.kl.estimator` (http://joschu.net/blog/kl-approx.html)."""
