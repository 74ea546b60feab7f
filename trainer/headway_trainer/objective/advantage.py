"""Advantages: rewards of one group's scored episodes in, one number an episode out.

An `InfraError` episode is no input: it is in no mean and in no standard deviation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import torch
from torch import Tensor

Normalize = Literal["std", "none"]
AdvantageFunction = Callable[[Tensor, Normalize], Tensor]

STD_EPSILON: Final = 1e-6


def group_based(rewards_G: Tensor, normalize: Normalize) -> Tensor:
    """Reward less the group's mean, over its standard deviation where `normalize` is std.

    GRPO (arXiv 2402.03300): unbiased deviation, epsilon 1e-6. `none` is Dr. GRPO (arXiv 2503.20783).
    A group whose rewards are all equal, or that has one episode, has advantage exactly 0: rounding of the
    mean must not be blown up by a deviation near 0.

    Args:
        rewards_G: float64 rewards of the scored episodes.

    Returns:
        float64 advantages, same shape.
    """
    if rewards_G.numel() < 2 or bool(rewards_G.min() == rewards_G.max()):
        return torch.zeros_like(rewards_G)
    centred_G = rewards_G - rewards_G.mean()
    return centred_G / (rewards_G.std(correction=1) + STD_EPSILON) if normalize == "std" else centred_G


ADVANTAGES: Final[dict[str, AdvantageFunction]] = {"group_based": group_based}
"""By `spec.algorithm.advantage.method`."""
