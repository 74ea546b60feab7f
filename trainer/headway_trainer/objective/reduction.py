"""How the losses of tokens become one number.

The denominator is that of the whole optimizer step, over every micro-batch and every rank, so that
neither packing nor accumulation nor the number of ranks changes the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from torch import Tensor

ReductionFunction = Callable[[Tensor, int], Tensor]


def token_mean(loss_T: Tensor, step_tokens: int) -> Tensor:
    """Sum over the tokens at hand, divided by the action tokens of the whole optimizer step."""
    return loss_T.sum() / step_tokens


def step_tokens(action_tokens: Sequence[int]) -> int:
    """The denominator of `token_mean`: action tokens of all rows that the optimizer step trains."""
    return sum(action_tokens)


REDUCTIONS: Final[dict[str, ReductionFunction]] = {"token_mean": token_mean}
"""By `spec.algorithm.reduction`."""
