"""Presets: what a spec expands to, and what is refused."""

from __future__ import annotations

import pytest
import torch

from headway_api.exits import JobError
from headway_api.spec.algorithm import AlgorithmSpec
from headway_trainer.objective.presets import Objective


def test_the_default_is_ppo_with_its_bounds() -> None:
    assert Objective.of(AlgorithmSpec()).expanded() == {
        "loss": "ppo",
        "clip_low": 0.8,
        "clip_high": 1.2,
        "advantage": "group_based",
        "normalize": "std",
        "reduction": "token_mean",
        "correction": "bypass",
    }


def test_cispo_brings_its_own_bound_from_above() -> None:
    preset = Objective.of(AlgorithmSpec(loss="cispo"))
    assert (preset.clip_low, preset.clip_high) == (0.0, 6.0)


def test_importance_sampling_is_not_bounded() -> None:
    preset = Objective.of(AlgorithmSpec(loss="importance_sampling"))
    assert (preset.clip_low, preset.clip_high) == (0.0, float("inf"))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"loss": "gspo"}, "spec.algorithm.loss"),
        ({"reduction": "constant"}, "spec.algorithm.reduction"),
        ({"correction": "tis"}, "spec.algorithm.correction"),
    ],
)
def test_what_this_version_cannot_run_is_refused_by_name(change: dict[str, str], field: str) -> None:
    spec = AlgorithmSpec().model_copy(update=change)
    with pytest.raises(JobError) as refused:
        Objective.of(spec)
    assert refused.value.termination.field == field
    assert refused.value.permanent


def test_shares_of_a_loss_add_up_however_tokens_are_divided() -> None:
    preset = Objective.of(AlgorithmSpec())
    generator = torch.Generator().manual_seed(0)
    new, old = -torch.rand(60, generator=generator) * 3, -torch.rand(60, generator=generator) * 3
    advantage = torch.randn(60, generator=generator)
    weight = torch.full((60,), 1 / 60)
    whole, _ = preset.token_loss(new, old, advantage, weight)
    for size in (1, 7, 30, 59):
        parts = [
            preset.token_loss(*(tensor[i : i + size] for tensor in (new, old, advantage, weight)))[0]
            for i in range(0, 60, size)
        ]
        assert torch.stack(parts).sum().item() == pytest.approx(whole.item(), rel=1e-5)
