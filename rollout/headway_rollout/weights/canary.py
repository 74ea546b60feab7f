"""Compares how learner and engine score the same fixed sequence, to prove that weights arrived."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

MAX_POSITIONS: Final = 32
"""Maximum positions of the sequence that are scored. Each position needs a request of its own."""


def positions(count: int) -> list[int]:
    """Which of `count` log-probabilities to compare: all, or `MAX_POSITIONS` spread from end to end."""
    if count <= MAX_POSITIONS:
        return list(range(count))
    return [round(i * (count - 1) / (MAX_POSITIONS - 1)) for i in range(MAX_POSITIONS)]


def difference(expected: Sequence[float], found: Sequence[float]) -> float:
    """Mean absolute difference of two lists of log-probabilities; infinite if they cannot be compared."""
    if not expected or len(expected) != len(found):
        return math.inf
    total = math.fsum(abs(a - b) for a, b in zip(expected, found, strict=True))
    return total / len(expected) if math.isfinite(total) else math.inf


def agrees(measured: float, tolerance: float) -> bool:
    """Whether a measured difference is within `tolerance`. NaN is not."""
    return measured <= tolerance
