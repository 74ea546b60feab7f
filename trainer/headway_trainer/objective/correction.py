"""Which log-probabilities count as those of the old policy, given that another engine did the sampling.

The sampler's and the learner's log-probabilities of a token differ even under the same weights. A correction
says which of them the ratio is taken to, and what a token then counts.
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
"""Sampler's and recomputed log-probability and row of each token, the cap, and the floor for one that is
registered as `floored` -> old log-probability, and weight of the token's loss. Neither has a gradient. 0 is
the weight of a token that takes no part."""


@dataclass(frozen=True)
class Correction:
    """A correction, and whether it needs the learner's own log-probabilities from before the batch's first
    optimizer step; where it does not, it is given the sampler's in their place."""

    function: CorrectionFunction
    recomputes: bool
    floored: bool = False
    """Whether it takes a floor after the cap."""

    def __call__(
        self, sampler_T: Tensor, old_T: Tensor, row_T: Tensor, cap: float, floor: float
    ) -> tuple[Any, Any]:
        """Old log-probabilities and weights, as the function returned them."""
        bounds = (cap, floor) if self.floored else (cap,)
        return self.function(sampler_T, old_T, row_T, *bounds)


CORRECTIONS: Final[Table[Correction]] = Table("spec.algorithm.correction")


def correction(
    name: str, *, recomputes: bool, floored: bool = False
) -> Callable[[CorrectionFunction], CorrectionFunction]:
    """Register a correction; one that is `floored` is given spec.algorithm.correctionFloor too."""

    def register(function: CorrectionFunction) -> CorrectionFunction:
        CORRECTIONS.add(name, Correction(function, recomputes, floored))
        return function

    return register


@correction("bypass", recomputes=False)
def bypass(sampler_T: Tensor, old_T: Tensor, row_T: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """The sampler's log-probabilities are the old policy's: no second forward pass.

    The ratio then holds the drift of the policy and the mismatch of the two engines alike, and clipping
    bounds both.
    """
    return sampler_T, torch.ones_like(sampler_T)


@correction("none", recomputes=True)
def none(sampler_T: Tensor, old_T: Tensor, row_T: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """The mismatch is ignored."""
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
    """Rows whose geometric mean of exp(old - sampler) is outside [1 / cap, cap] take no part."""
    kept_T = row_mean(old_T - sampler_T, row_T).abs() <= log(cap)
    return old_T, kept_T.to(old_T.dtype)


@correction("icepop", recomputes=True, floored=True)
def icepop(
    sampler_T: Tensor, old_T: Tensor, row_T: Tensor, cap: float, floor: float
) -> tuple[Tensor, Tensor]:
    """IcePop (arXiv 2510.18855): each token weighs exp(old - sampler) where that is within [floor, cap], and
    takes no part where it is not."""
    weight_T = bounded_exp(old_T - sampler_T)
    return old_T, torch.where((weight_T >= floor) & (weight_T <= cap), weight_T, 0.0)


@correction("sequence_tis", recomputes=True)
def sequence_tis(sampler_T: Tensor, old_T: Tensor, row_T: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """Truncated importance sampling of sequences: each token of a row weighs min(product of exp(old -
    sampler) over the row, cap)."""
    return old_T, bounded_exp(row_sum(old_T - sampler_T, row_T)).clamp(max=cap)
