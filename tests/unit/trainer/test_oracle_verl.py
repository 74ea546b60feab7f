"""The objective against verl's, value and gradient, on random ragged batches. `make test-oracles` runs it."""

from __future__ import annotations

import importlib
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ragged_batches import EPISODE_TOKENS, Ragged
from torch import Tensor

from headway_api.spec.algorithm import AlgorithmSpec
from headway_trainer.objective.advantage import ADVANTAGES, AdvantageSettings, Numbers, Scored
from headway_trainer.objective.presets import Objective

WHY = "verl is in the environment that `make oracles` makes; `make test-oracles` runs this there"
pytest.importorskip("verl", reason=WHY)
# If verl is installed but lacks this module, the file fails, so that nothing is skipped silently.
algos = importlib.import_module("verl.trainer.ppo.core_algos")
helper = importlib.import_module("verl.trainer.ppo.rollout_corr_helper")
workers = importlib.import_module("verl.workers.config")

SEEDS = range(8)
FAR = 1e9
LOSSES: dict[str, tuple[dict[str, Any], Any, tuple[float, float, float]]] = {
    # Our settings; verl's function; verl's low and high as distances from 1, and its dual clip (always on).
    "ppo": ({"loss": "ppo"}, algos.compute_policy_loss_vanilla, (0.2, 0.2, FAR)),
    "ppo with its own bounds": (
        {"loss": "ppo", "clip": {"low": 0.7, "high": 1.5}},
        algos.compute_policy_loss_vanilla,
        (0.3, 0.5, FAR),
    ),
    "ppo with a dual clip": (
        {"loss": "ppo", "clip": {"low": 0.8, "high": 1.2, "dual": 3}},
        algos.compute_policy_loss_vanilla,
        (0.2, 0.2, 3.0),
    ),
    "importance_sampling": (
        {"loss": "importance_sampling"},
        algos.compute_policy_loss_vanilla,
        (1.0, FAR, FAR),
    ),
    "cispo": ({"loss": "cispo"}, algos.compute_policy_loss_cispo, (1.0, 5.0, FAR)),
    "gspo": ({"loss": "gspo"}, algos.compute_policy_loss_gspo, (0.2, 0.2, FAR)),
}
MODES = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "constant": "seq-mean-token-sum-norm",
}


def objective(**chosen: Any) -> Objective:
    return Objective.of(AlgorithmSpec.model_validate(chosen), EPISODE_TOKENS)


def verls(
    batch: Ragged,
    loss: str,
    mode: str,
    *,
    old_T: Tensor,
    weight_BL: Tensor | None = None,
    kept_BL: Tensor | None = None,
) -> Tensor:
    _, function, (low, high, dual) = LOSSES[loss]
    config = workers.ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        use_dynamic_bsz=True,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=dual,
    )
    if mode == "seq-mean-token-sum-norm":
        config.global_batch_info["loss_scale_factor"] = EPISODE_TOKENS
    mask_BL = batch.mask_BL if kept_BL is None else batch.mask_BL * kept_BL
    found, _ = function(
        old_log_prob=batch.rectangle(old_T),
        log_prob=batch.rectangle(batch.new_T),
        advantages=batch.rectangle(batch.advantage_T),
        response_mask=mask_BL,
        loss_agg_mode=mode,
        config=config,
        rollout_is_weights=weight_BL,
    )
    assert isinstance(found, Tensor)
    return found


def same(batch: Ragged, ours: tuple[float, Tensor], theirs: Tensor) -> None:
    np.testing.assert_allclose(ours[0], theirs.item(), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(ours[1], batch.slope(theirs), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("loss", "reduction"), list(itertools.product(LOSSES, MODES)))
def test_losses_and_reductions_equal_verls(loss: str, reduction: str, seed: int) -> None:
    batch = Ragged.draw(seed)
    chosen = objective(**LOSSES[loss][0], reduction=reduction)  # bypass: the old policy is the sampler's
    same(batch, batch.ours(chosen), verls(batch, loss, MODES[reduction], old_T=batch.sampler_T))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("reduction", MODES)
def test_only_verls_denominators_count_groups_without_advantage(reduction: str, seed: int) -> None:
    # Deliberately different: here such a group makes no rows, so the other groups get a larger weight.
    batch = Ragged.draw(seed).without_advantage(0)
    loss, slope = batch.ours(objective(reduction=reduction))
    heard_T = batch.advantage_T != 0
    share = heard_T.double().mean().item()
    if reduction != "token_mean":
        share = len(set(batch.row_T[heard_T].tolist())) / len(batch.prompts)
    assert 0 < share < 1
    theirs = verls(batch, "ppo", MODES[reduction], old_T=batch.sampler_T)
    same(batch, (loss * share, slope * share), theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_prompt_mean_is_the_mean_of_the_prompts_token_means(seed: int) -> None:
    batch = Ragged.draw(seed)
    of_prompt = [
        verls(
            batch,
            "ppo",
            "token-mean",
            old_T=batch.sampler_T,
            kept_BL=torch.tensor([[float(prompt == each)] for each in batch.prompts]),
        )
        for prompt in sorted(set(batch.prompts))
    ]
    same(batch, batch.ours(objective(reduction="prompt_mean")), torch.stack(of_prompt).mean())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("loss", list(LOSSES))
@pytest.mark.parametrize(
    ("correction", "cap"), [("none", None), ("tis", 2.0), ("tis", 1.25), ("decoupled", FAR)]
)
def test_corrections_equal_verls(loss: str, correction: str, cap: float | None, seed: int) -> None:
    batch = Ragged.draw(seed)
    weight_BL = None
    if cap is not None:
        gap_BL = batch.rectangle(batch.old_T - batch.sampler_T)
        weight_BL, _ = helper.compute_rollout_correction_weights(gap_BL, batch.mask_BL, "token", cap)
    spec = LOSSES[loss][0] | {"correction": correction}
    if correction == "tis":
        spec["correctionCap"] = cap
    theirs = verls(batch, loss, "token-mean", old_T=batch.old_T, weight_BL=weight_BL)
    same(batch, batch.ours(objective(**spec)), theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_sequence_mask_keeps_the_rows_that_verl_keeps(seed: int) -> None:
    # Deliberately different: verl divides by the kept tokens. We divide by the step's, known before the pass.
    batch = Ragged.draw(seed)
    gap_BL = batch.rectangle(batch.old_T - batch.sampler_T)
    kept_BL, _ = helper.compute_rollout_rejection_mask(gap_BL, batch.mask_BL, "seq_mean_k1", 1.5)
    ours = batch.ours(objective(correction="sequence_mask", correctionCap=1.5))
    assert 0 < kept_BL.sum() < batch.mask_BL.sum()
    share = (kept_BL.sum() / batch.mask_BL.sum()).item()
    same(batch, ours, share * verls(batch, "ppo", "token-mean", old_T=batch.old_T, kept_BL=kept_BL))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("loss", list(LOSSES))
@pytest.mark.parametrize("cap", [1.25, 2.0])
def test_truncated_weights_of_sequences_equal_verls(loss: str, cap: float, seed: int) -> None:
    batch = Ragged.draw(seed)
    gap_BL = batch.rectangle(batch.old_T - batch.sampler_T)
    weight_BL, _ = helper.compute_rollout_correction_weights(gap_BL, batch.mask_BL, "sequence", cap)
    ours = batch.ours(objective(**LOSSES[loss][0], correction="sequence_tis", correctionCap=cap))
    same(batch, ours, verls(batch, loss, "token-mean", old_T=batch.old_T, weight_BL=weight_BL))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("loss", list(LOSSES))
def test_icepop_equals_verls_token_weight_with_two_bounds(loss: str, seed: int) -> None:
    batch = Ragged.draw(seed)
    gap_BL = batch.rectangle(batch.old_T - batch.sampler_T)
    weight_BL, _ = helper.compute_rollout_correction_weights(gap_BL, batch.mask_BL, "token", "0.8_1.2")
    assert 0 < (weight_BL > 0).sum() < batch.mask_BL.sum()
    ours = batch.ours(
        objective(**LOSSES[loss][0], correction="icepop", correctionCap=1.2, correctionFloor=0.8)
    )
    same(batch, ours, verls(batch, loss, "token-mean", old_T=batch.old_T, weight_BL=weight_BL))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("estimator", "mode"), list(itertools.product(["k1", "k2", "k3"], MODES)))
def test_divergence_and_entropy_equal_verls(estimator: str, mode: str, seed: int) -> None:
    batch = Ragged.draw(seed)
    terms = {"kl": {"coefficient": 0.05, "estimator": estimator}, "entropy": {"coefficient": 0.01}}
    factor = {"loss_scale_factor": EPISODE_TOKENS} if mode == "constant" else {}

    def agg(values_BL: Tensor) -> Tensor:
        found = algos.agg_loss(values_BL, batch.mask_BL, MODES[mode], **factor)
        assert isinstance(found, Tensor)
        return found

    new_BL, reference_BL = batch.rectangle(batch.new_T), batch.rectangle(batch.reference_T)
    theirs = verls(batch, "ppo", MODES[mode], old_T=batch.sampler_T)
    theirs = theirs + 0.05 * agg(algos.kl_penalty(new_BL, reference_BL, estimator))
    theirs = theirs - 0.01 * agg(batch.rectangle(batch.entropy_T))
    same(batch, batch.ours(objective(**terms, reduction=mode)), theirs)


class Scores:
    """Groups of episodes of unequal length with a few turns each. As in verl, tokens carry the rewards."""

    def __init__(self, seed: int, *, smallest: int = 2, turn_tokens: int = 4) -> None:
        numbers = np.random.default_rng(seed)
        self.groups: list[list[Scored]] = []
        for _ in range(numbers.integers(2, 5)):
            group = []
            for _ in range(numbers.integers(smallest, 6)):
                turns = int(numbers.integers(1, 4))
                tokens = tuple(int(n) for n in numbers.integers(1, turn_tokens + 1, turns))
                earned = tuple(float(r) for r in numbers.integers(-2, 3, turns))
                group.append(Scored(sum(earned), tokens, earned))
            self.groups.append(group)
        every = [(g, e) for g, group in enumerate(self.groups) for e in group]
        self.index = np.array([g for g, _ in every])
        length = max(e.action_tokens for _, e in every)
        self.mask_BL = torch.zeros(len(every), length, dtype=torch.float64)
        self.rewards_BL = torch.zeros_like(self.mask_BL)
        for row, (_, each) in enumerate(every):
            self.mask_BL[row, : each.action_tokens] = 1
            ends = np.cumsum(each.turn_tokens) - 1
            for end, earned_there in zip(ends, each.turn_rewards or (), strict=True):
                self.rewards_BL[row, end] = earned_there

    def without_turns(self) -> list[list[Scored]]:
        return [[Scored(e.reward, e.turn_tokens) for e in group] for group in self.groups]

    def ours(self, method: str, normalize: str = "std", gamma: float = 1.0, *, turns: bool = False) -> Tensor:
        """Our advantage of every token, of shape (B, L)."""
        groups = self.groups if turns else self.without_turns()
        found = ADVANTAGES[method](groups, AdvantageSettings(normalize, gamma))  # type: ignore[arg-type]
        rectangle_BL = torch.zeros_like(self.mask_BL)
        flat: list[tuple[Scored, Numbers]] = [
            (e, a)
            for group, values in zip(groups, found, strict=True)
            for e, a in zip(group, values, strict=True)
        ]
        for row, (each, values) in enumerate(flat):
            rectangle_BL[row, : each.action_tokens] = torch.from_numpy(np.repeat(values, each.turn_tokens))
        return rectangle_BL


def close(ours: Tensor, theirs: Tensor) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("normalize", ["std", "none"])
def test_group_based_and_pass_at_k_equal_verls(seed: int, normalize: str) -> None:
    scores = Scores(seed)
    theirs, _ = algos.compute_grpo_outcome_advantage(
        scores.rewards_BL, scores.mask_BL, scores.index, norm_adv_by_std_in_grpo=normalize == "std"
    )
    close(scores.ours("group_based", normalize), theirs)
    theirs, _ = algos.compute_grpo_passk_outcome_advantage(
        scores.rewards_BL,
        scores.mask_BL,
        scores.index,
        config={"norm_adv_by_std_in_grpo": normalize == "std"},
    )
    close(scores.ours("grpo_passk", normalize), theirs)


@pytest.mark.parametrize("seed", range(20))
def test_rloo_opo_and_whitened_baseline_equal_verls(seed: int) -> None:
    alone = Scores(seed, smallest=1)  # both give a lone episode its reward as advantage
    theirs, _ = algos.compute_rloo_outcome_advantage(alone.rewards_BL, alone.mask_BL, alone.index)
    close(alone.ours("rloo"), theirs)
    scores = Scores(seed)
    theirs, _ = algos.compute_opo_outcome_advantage(scores.rewards_BL, scores.mask_BL, scores.index)
    close(scores.ours("opo"), theirs)
    theirs, _ = algos.compute_reinforce_plus_plus_baseline_outcome_advantage(
        scores.rewards_BL, scores.mask_BL, scores.index
    )
    close(scores.ours("reinforce_pp_baseline"), theirs)


@pytest.mark.parametrize("seed", range(20))
def test_returns_and_their_whitening_equal_verls(seed: int) -> None:
    scores = Scores(seed, smallest=1)
    theirs, returns = algos.compute_reinforce_plus_plus_outcome_advantage(
        scores.rewards_BL, scores.mask_BL, config=SimpleNamespace(gamma=1.0)
    )
    close(scores.ours("reinforce_pp", turns=True), theirs)
    close(scores.ours("monte_carlo", turns=True), returns)


@pytest.mark.parametrize("seed", range(20))
def test_verl_discounts_by_the_token_and_we_by_the_turn(seed: int) -> None:
    # If every turn is one token, both are the same.
    scores = Scores(seed, smallest=1, turn_tokens=1)
    theirs, returns = algos.compute_reinforce_plus_plus_outcome_advantage(
        scores.rewards_BL, scores.mask_BL, config=SimpleNamespace(gamma=0.9)
    )
    close(scores.ours("reinforce_pp", gamma=0.9, turns=True), theirs)
    close(scores.ours("monte_carlo", gamma=0.9, turns=True), returns)


@pytest.mark.parametrize("seed", range(20))
def test_gpg_equals_verls_except_for_what_counts_as_non_zero(seed: int) -> None:
    # Deliberately different: verl counts rewards that are not 0, and we episodes of groups with a gradient.
    scores = Scores(seed)
    theirs, _ = algos.compute_gpg_outcome_advantage(scores.rewards_BL, scores.mask_BL, scores.index)
    rewarded = int(torch.count_nonzero(scores.rewards_BL.sum(1)))
    heard = sum(len(group) for group in scores.groups if len({e.reward for e in group}) > 1)
    close(scores.ours("gpg") * heard, theirs * rewarded)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("normalize", ["std", "none"])
def test_per_turn_is_group_based_of_the_returns_at_each_turn(seed: int, normalize: str) -> None:
    scores = Scores(seed, turn_tokens=1)
    rows = [
        (f"{g}/{turn}", value)
        for g, group in enumerate(scores.groups)
        for episode in group
        for turn, value in enumerate(episode.returns(0.9))
    ]
    lone = {name for name, _ in rows if [n for n, _ in rows].count(name) == 1}
    theirs, _ = algos.compute_grpo_outcome_advantage(
        torch.tensor([[value] for _, value in rows], dtype=torch.float64),
        torch.ones(len(rows), 1, dtype=torch.float64),
        np.array([name for name, _ in rows]),
        norm_adv_by_std_in_grpo=normalize == "std",
    )
    # Deliberately different: a turn that only one episode reached has its return in verl, and 0 here.
    expected = [0.0 if name in lone else a.item() for (name, _), a in zip(rows, theirs, strict=True)]
    ours = scores.ours("group_based_per_turn", normalize, 0.9, turns=True)[scores.mask_BL > 0]
    np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-9)
