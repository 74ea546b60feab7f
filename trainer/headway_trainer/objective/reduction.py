"""How the losses of tokens become one number: a weight for the tokens of each row, and the loss is their sum.

The weights are made of the whole optimizer step, over every micro-batch and every rank, so that neither
packing nor accumulation nor the number of ranks changes the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class RowShape:
    """What a reduction may know of a row."""

    group_id: str
    episode: int
    """Index of its episode in the group."""
    action_tokens: int


ReductionFunction = Callable[[Sequence[RowShape]], list[float]]


def token_mean(rows: Sequence[RowShape]) -> list[float]:
    """Every action token of the optimizer step counts the same."""
    tokens = sum(row.action_tokens for row in rows)
    return [1 / tokens] * len(rows)


REDUCTIONS: Final[dict[str, ReductionFunction]] = {"token_mean": token_mean}
"""By `spec.algorithm.reduction`."""
