"""The objective against TRL's GRPOTrainer, value and gradient, on random ragged batches.

`make test-oracles` runs it.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ragged_batches import EPISODE_TOKENS, Ragged
from torch import Tensor

from headway_api.spec.algorithm import AlgorithmSpec
from headway_trainer.objective.presets import Objective
from headway_trainer.objective.ratio import row_mean

WHY = "trl is in the environment that `make oracles` makes; `make test-oracles` runs this there"
trl = pytest.importorskip("trl", reason=WHY)

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # Our settings, TRL's settings. TRL's clip bounds are distances from 1, but cispo's is absolute.
    "grpo": ({"reduction": "sequence_mean"}, {"loss_type": "grpo"}),
    "bnpo": ({}, {"loss_type": "bnpo"}),
    "dapo": ({"clip": {"low": 0.8, "high": 1.28}}, {"loss_type": "dapo", "epsilon_high": 0.28}),
    "dr_grpo": ({"reduction": "constant"}, {"loss_type": "dr_grpo"}),
    "dual clip": ({"clip": {"low": 0.8, "high": 1.2, "dual": 3}}, {"loss_type": "bnpo", "delta": 3.0}),
    "cispo": ({"loss": "cispo"}, {"loss_type": "cispo", "epsilon_high": 6.0}),
    "gspo": (
        {"loss": "gspo", "reduction": "sequence_mean"},
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    ),
    "grpo with k3": (
        {"reduction": "sequence_mean", "kl": {"coefficient": 0.04}},
        {"loss_type": "grpo", "beta": 0.04},
    ),
    "entropy of the token mean": (
        {"entropy": {"coefficient": 0.01}},
        {"loss_type": "bnpo", "entropy_coef": 0.01},
    ),
    "tis": ({"correction": "tis"}, {"loss_type": "bnpo", "use_vllm": True}),
}


def trls(batch: Ragged, old_T: Tensor, weight_BL: Tensor, **options: Any) -> Tensor:
    """The result of `GRPOTrainer._compute_loss`, called with a stub that has the attributes it reads."""
    trainer = SimpleNamespace(
        args=SimpleNamespace(
            delta=options.get("delta"), use_bias_correction_kl=False, steps_per_generation=1
        ),
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(
            num_processes=1,
            sync_gradients=False,
            gather=lambda value: value,
            reduce=lambda value, reduction: value,
        ),
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (
            batch.rectangle(batch.new_T),
            batch.rectangle(batch.entropy_T),
            None,
        ),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=options.get("importance_sampling_level", "token"),
        beta=options.get("beta", 0.0),
        loss_type=options["loss_type"],
        epsilon_low=0.2,
        epsilon_high=options.get("epsilon_high", 0.2),
        use_vllm=options.get("use_vllm", False),
        vllm_importance_sampling_correction=True,
        current_gradient_accumulation_steps=1,
        max_completion_length=EPISODE_TOKENS,
        _entropy_bonus_enabled="entropy_coef" in options,
        entropy_coef=options.get("entropy_coef", 0.0),
        use_adaptive_entropy=False,
    )
    mask_BL = batch.mask_BL
    rows = torch.zeros(len(batch.prompts), 1, dtype=torch.long)
    inputs = {
        "prompt_ids": rows,
        "prompt_mask": rows + 1,
        "completion_ids": torch.zeros_like(mask_BL, dtype=torch.long),
        "completion_mask": mask_BL,
        "advantages": batch.rectangle(batch.advantage_T),
        "old_per_token_logps": batch.rectangle(old_T),
        "ref_per_token_logps": batch.rectangle(batch.reference_T),
        "importance_sampling_ratio": weight_BL,
        "num_items_in_batch": mask_BL.sum(),
    }
    found = trl.GRPOTrainer._compute_loss(trainer, None, inputs)
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("case", list(CASES))
def test_losses_and_gradients_equal_trls(case: str, seed: int) -> None:
    batch = Ragged.draw(seed)
    if case == "gspo":  # if advantages differ within a row, TRL's gradient differs: see the next test
        batch = batch.with_one_advantage_a_row()
    spec, options = CASES[case]
    ours = batch.ours(Objective.of(AlgorithmSpec.model_validate(spec), EPISODE_TOKENS))
    old_T = batch.old_T if "correction" in spec else batch.sampler_T
    weight_BL = batch.rectangle((batch.old_T - batch.sampler_T).exp().clamp(max=2.0))
    theirs = trls(batch, old_T, weight_BL, **options)
    np.testing.assert_allclose(ours[0], theirs.item(), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(ours[1], batch.slope(theirs), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_gspo_gradient_is_per_row_in_trl_and_per_token_here(seed: int) -> None:
    # Deliberately different if advantages vary within a row. A token has its own advantage (GSPO-token, as in
    # verl), not the mean of its row.
    batch = Ragged.draw(seed)
    spec, options = CASES["gspo"]
    value, slope = batch.ours(Objective.of(AlgorithmSpec.model_validate(spec), EPISODE_TOKENS))
    theirs = trls(batch, batch.sampler_T, batch.mask_BL, **options)
    np.testing.assert_allclose(value, theirs.item(), rtol=1e-6, atol=1e-9)
    their_slope = batch.slope(theirs)
    assert not torch.allclose(slope, their_slope, rtol=1e-3)
    np.testing.assert_allclose(row_mean(slope, batch.row_T), their_slope, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_trl_takes_entropy_by_the_token_under_every_reduction(seed: int) -> None:
    # Deliberately different: here the reduction applies to every term of a token's loss.
    batch = Ragged.draw(seed)
    spec = {"reduction": "sequence_mean", "entropy": {"coefficient": 0.01}}
    ours, _ = batch.ours(Objective.of(AlgorithmSpec.model_validate(spec), EPISODE_TOKENS))
    without, _ = batch.ours(Objective.of(AlgorithmSpec(reduction="sequence_mean"), EPISODE_TOKENS))
    theirs = trls(batch, batch.sampler_T, batch.mask_BL, loss_type="grpo", entropy_coef=0.01).item()
    entropy_BL, lengths_B = batch.rectangle(batch.entropy_T), batch.mask_BL.sum(1)
    assert without - theirs == pytest.approx(0.01 * batch.entropy_T.mean().item())
    assert without - ours == pytest.approx(0.01 * (entropy_BL.sum(1) / lengths_B).mean().item())
