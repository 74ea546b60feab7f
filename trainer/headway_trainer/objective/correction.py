"""Which log-probabilities count as those of the old policy, given that another engine did the sampling.

The sampler's and the learner's log-probabilities of a token differ even under the same weights. A correction
says which of them the ratio is taken to, and what a token then counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import Final

import torch
from torch import Tensor

from headway_trainer.objective.ratio import bounded_exp, row_mean
from headway_trainer.objective.registry import Table

CorrectionFunction = Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
"""Sampler's and recomputed log-probability and row of each token, and the cap -> old log-probability, and
weight of the token's loss. Neither has a gradient. 0 is the weight of a token that takes no part."""


@dataclass(frozen=True)
class Correction:
    """A correction, and whether it needs the learner's own log-probabilities from before the batch's first
    optimizer step; where it does not, it is given the sampler's in their place."""

    function: CorrectionFunction
    recomputes: bool


CORRECTIONS: Final[Table[Correction]] = Table("spec.algorithm.correction")


def correction(name: str, *, recomputes: bool) -> Callable[[CorrectionFunction], CorrectionFunction]:
    """Register a correction."""

    def register(function: CorrectionFunction) -> CorrectionFunction:
        CORRECTIONS.add(name, Correction(function, recomputes))
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
