"""A user's own objective: an advantage and a loss, for `spec.algorithm.plugins: [acme_objective]`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headway_trainer.objective.advantage import AdvantageSettings, Numbers, episode_advantage
from headway_trainer.objective.surrogate import RatioBounds, surrogate

TEMPERATURE_UP, TEMPERATURE_DOWN = 1.0, 1.05


@episode_advantage("against_median")
def against_median(rewards_G: Numbers, tokens_G: Numbers, settings: AdvantageSettings) -> Numbers:
    """Reward minus the group's median, so that one lucky episode does not make all others negative."""
    return rewards_G - np.median(rewards_G)


@surrogate("sapo")
def sapo_loss(ratio_T: Tensor, new_T: Tensor, advantage_T: Tensor, bounds: RatioBounds) -> Tensor:
    """SAPO (arXiv 2511.20347): a sigmoid gate replaces the clip."""
    temperature_T = torch.where(advantage_T > 0, TEMPERATURE_UP, TEMPERATURE_DOWN)
    return -torch.sigmoid(temperature_T * (ratio_T - 1)) * 4 / temperature_T * advantage_T
