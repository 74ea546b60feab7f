"""Chooses the old policy's log-probabilities: the sampler's or the learner's.

The sampler and the learner give a token different log-probabilities even under the same weights. A correction
says which of the two the ratio uses, and gives each token a weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import Any, Final

import torch
from torch import Tensor

from headway_trainer.objective.ratio import bounded_exp, row_mean, row_sum
from headway_trainer.objective.registry import Table

CorrectionFunction = Callable[..., tuple[Tensor, Tensor]]
"""Sampler's and recomputed log-probability, training row, cap, floor -> old log-probability and loss weight.

Only a correction registered as `floored` takes the floor. Neither result has a gradient. A token of weight 0
is left out of the loss.
"""


@dataclass(frozen=True)
class Correction:
    """A correction with its options."""

    function: CorrectionFunction
    recomputes: bool
    """Whether it needs the learner's log-probabilities from before the batch's first optimizer step.
    Otherwise it gets the sampler's instead."""
    floored: bool = False
    """Whether the function takes a floor after the cap."""

    def __call__(
        self, sampler_T: Tensor, old_T: Tensor, row_T: Tensor, cap: float, floor: float
    ) -> tuple[Any, Any]:
        """Old log-probabilities and weights, unchecked."""
        bounds = (cap, floor) if self.floored else (cap,)
        return self.function(sampler_T, old_T, row_T, *bounds)


CORRECTIONS: Final[Table[Correction]] = Table("spec.algorithm.correction")


def correction(
    name: str, *, recomputes: bool, floored: bool = False
) -> Callable[[CorrectionFunction], CorrectionFunction]:
    """Register a correction; a `floored` one also gets spec.algorithm.correctionFloor."""

    def register(function: CorrectionFunction) -> CorrectionFunction:
        CORRECTIONS.add(name, Correction(function, recomputes, floored))
        return function

    return register


@correction("bypass", recomputes=False)
def bypass(sampler_T: Tensor, old_T: Tensor, row_T: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """Use the sampler's log-probabilities as the old policy's, without a second forward pass.

    The ratio then contains both the drift of the policy and the mismatch of the two engines, and clipping
    bounds both.
    """
    return sampler_T, torch.ones_like(sampler_T)


@correction("none", recomputes=True)
def none(sampler_T: Tensor, old_T: Tensor, row_T: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """Use the learner's log-probabilities as the old policy's, ignore the mismatch, and weigh each token
    1."""
    return old_T, torch.ones_like(old_T)


@correction("tis", recomputes=True)
def tis(sampler_T: Tensor, old_T: Tensor, row_T: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """Truncated importance sampling: each token weighs min(exp(old - sampler), cap)."""
    return old_T, bounded_exp(old_T - sampler_T).clamp(max=cap)


@correction("decoupled", recomputes=True)
def decoupled(sampler_T: Tensor, old_T: Tensor, row_T: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """AReaL's decoupled objective (arXiv 2505.24298): each token weighs exp(old - sampler), unbounded."""
    return old_T, bounded_exp(old_T - sampler_T)


@correction("sequence_mask", recomputes=True)
def sequence_mask(sampler_T: Tensor, old_T: Tensor, row_T: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """Training rows whose geometric mean of exp(old - sampler) is outside [1 / cap, cap] are left out."""
    kept_T = row_mean(old_T - sampler_T, row_T).abs() <= log(cap)
    return old_T, kept_T.to(old_T.dtype)


@correction("icepop", recomputes=True, floored=True)
def icepop(
    sampler_T: Tensor, old_T: Tensor, row_T: Tensor, cap: float, floor: float
) -> tuple[Tensor, Tensor]:
    """IcePop (arXiv 2510.18855): each token weighs exp(old - sampler) if that is within [floor, cap].
    Otherwise the token is left out."""
    weight_T = bounded_exp(old_T - sampler_T)
    return old_T, torch.where((weight_T >= floor) & (weight_T <= cap), weight_T, 0.0)


@correction("sequence_tis", recomputes=True)
def sequence_tis(sampler_T: Tensor, old_T: Tensor, row_T: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """Truncated importance sampling of sequences: all tokens of a training row have one weight. It is
    min(product of exp(old - sampler) over the training row, cap)."""
    return old_T, bounded_exp(row_sum(old_T - sampler_T, row_T)).clamp(max=cap)
