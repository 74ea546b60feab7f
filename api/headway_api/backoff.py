"""Pauses between tries: doubled each time up to a bound, and randomized if many processes wait."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

MAX_DOUBLINGS: Final = 64
"""After this many failures no pause grows, so that an endless count of failures does not overflow."""


def doubled(failures: int, first: float, maximum: float) -> float:
    """Seconds to wait after `failures` in a row: `first` after one, and twice as long after each further one.

    Never more than `maximum`. Without a failure it is half of `first`.
    """
    return float(min(maximum, first * 2.0 ** min(failures - 1, MAX_DOUBLINGS)))


def spread(seconds: float, chance: Callable[[], float] = random.random) -> float:
    """A random pause between half of `seconds` and `seconds`, so that processes that failed together do not
    retry together.

    Args:
        chance: returns a random number from 0 to 1.
    """
    return seconds * (1.0 + chance()) / 2.0
