"""How much likelier the trained policy makes a token than the policy that is taken as old."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

LOG_RATIO_LIMIT: Final = 20.0
"""A log-ratio is cut at this distance from 0: e^20 is finite in every dtype the sum passes through."""


def token_ratio(new_T: Tensor, old_T: Tensor) -> Tensor:
    """exp(new - old), token by token; the gradient flows through `new_T` only."""
    return torch.exp((new_T - old_T.detach()).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
