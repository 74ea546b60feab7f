"""Which log-probabilities count as those of the old policy, given that another engine did the sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torch import Tensor

CorrectionFunction = Callable[[Tensor], Tensor]


def bypass(sampler_T: Tensor) -> Tensor:
    """The sampler's log-probabilities are the old policy's: no second forward pass.

    The ratio then holds the drift of the policy and the mismatch of the two engines alike, and clipping
    bounds both.
    """
    return sampler_T


CORRECTIONS: Final[dict[str, CorrectionFunction]] = {"bypass": bypass}
"""By `spec.algorithm.correction`."""
