"""Sums over the action tokens of a step."""

from __future__ import annotations

import math

import pytest
import torch

from headway_trainer.objective.presets import TokenStatistics
from headway_trainer.ranks import Ranks
from headway_trainer.step import FAR, Tally

GAPS = torch.tensor([0.0, 0.5, -1.0, FAR / 2])


def statistics(gap_T: torch.Tensor) -> TokenStatistics:
    """Statistics of tokens with these gaps between trained and sampling log-probability."""
    one_T = torch.ones_like(gap_T)
    return TokenStatistics(
        loss_T=one_T,
        ratio_T=gap_T.exp(),
        clipped_T=torch.zeros_like(gap_T),
        log_ratio_T=gap_T,
        correction_T=one_T,
        divergence_T=None,
    )


def test_weights_and_far_tokens_are_means_over_all_micro_batches() -> None:
    tally = Tally()
    for part in GAPS.split(2):
        tally.add(statistics(part), torch.zeros_like(part), torch.ones_like(part))
    found = tally.over(Ranks(0, 0, 1, None))
    assert found["weight_squared"] == pytest.approx(float((2 * GAPS).exp().mean()))
    assert found["far"] == 1 / 4
    assert found["k3"] == pytest.approx(float((GAPS.exp() - 1 - GAPS).mean()))
    assert math.isnan(found["divergence"])
