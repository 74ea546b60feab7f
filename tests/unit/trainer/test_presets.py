"""Presets: what a spec expands to, what is refused, and properties that every loss must have."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway_api.exits import JobError
from headway_api.objective import SEQUENCE_LOSSES, expand
from headway_api.spec.algorithm import ADVANTAGES as ADVANTAGE_NAMES
from headway_api.spec.algorithm import CORRECTIONS as CORRECTION_NAMES
from headway_api.spec.algorithm import DEFAULT_BOUNDS, LOSSES, RATIOS, AlgorithmSpec, Entropy, Kl
from headway_api.spec.algorithm import REDUCTIONS as REDUCTION_NAMES
from headway_trainer.objective import advantage, correction, ratio, reduction, surrogate
from headway_trainer.objective.advantage import Scored
from headway_trainer.objective.penalty import DIVERGENCES
from headway_trainer.objective.presets import Objective
from headway_trainer.objective.reduction import RowShape

EVERY = list(itertools.product(LOSSES, REDUCTION_NAMES, CORRECTION_NAMES))
PAGE = Path(__file__).parents[3] / "docs/algorithms.md"
EPISODE_TOKENS = 64
EXTREME = st.sampled_from([0.0, -1e-6, -1.0, -80.0, -1e4, -3e38])


def of(**chosen: object) -> Objective:
    return Objective.of(AlgorithmSpec.model_validate(chosen), EPISODE_TOKENS)


def test_the_default_is_ppo_with_its_bounds() -> None:
    assert of().expanded() == {
        "loss": "ppo",
        "advantage": "group_based",
        "normalize": "std",
        "gamma": None,
        "ratio": "token",
        "surrogate": "ppo",
        "clip_low": 0.8,
        "clip_high": 1.2,
        "clip_dual": None,
        "correction": "bypass",
        "correction_cap": None,
        "correction_floor": None,
        "reduction": "token_mean",
        "episode_tokens": None,
        "denominator": "trained",
        "kl_coefficient": 0.0,
        "kl_estimator": None,
        "entropy_coefficient": 0.0,
        "plugins": (),
    }


def test_gspo_is_ppo_with_a_ratio_for_each_sequence() -> None:
    preset = of(loss="gspo", clip={"low": 0.9, "high": 1.1, "dual": 3}).preset
    assert (preset.loss, preset.ratio, preset.surrogate) == ("gspo", "sequence", "ppo")
    assert (preset.clip_low, preset.clip_high, preset.clip_dual) == (0.9, 1.1, 3)


def test_cispo_brings_its_own_bound_from_above() -> None:
    preset = of(loss="cispo").preset
    assert (preset.clip_low, preset.clip_high) == (0.0, 6.0)


def test_importance_sampling_is_not_bounded() -> None:
    preset = of(loss="importance_sampling").preset
    assert (preset.clip_low, preset.clip_high) == (None, None)


def test_settings_that_a_choice_does_not_use_are_not_shown() -> None:
    shown = expand(AlgorithmSpec.model_validate({"correction": "tis", "advantage": {"method": "rloo"}}), 64)
    assert (shown.correction_cap, shown.normalize, shown.gamma, shown.episode_tokens) == (
        2.0,
        None,
        None,
        None,
    )
    shown = expand(
        AlgorithmSpec.model_validate(
            {"reduction": "constant", "advantage": {"method": "reinforce_pp", "gamma": 0}}
        ),
        64,
    )
    assert (shown.correction_cap, shown.normalize, shown.gamma, shown.episode_tokens) == (None, None, 0.0, 64)


def test_returns_with_overflowing_variance_are_refused_by_field() -> None:
    """Otherwise every advantage would silently be 0, or the learner would end with a bare ValueError."""
    large = [[Scored(0.0, (3, 3), (1e300, -1e300)), Scored(1.0, (2, 2), (0.0, 1.0))]]
    for method in ("reinforce_pp", "monte_carlo"):
        with pytest.raises(JobError) as refused:
            of(advantage={"method": method}).advantages(large)
        termination = refused.value.termination
        assert (termination.reason, termination.field) == (
            "ObjectiveUnfit",
            "spec.algorithm.advantage.method",
        )
        assert "have the environment return rewards of a size between" in termination.message


@pytest.mark.parametrize(
    ("names", "table"),
    [
        (set(LOSSES) - {"gspo"}, surrogate.SURROGATES),
        (set(ADVANTAGE_NAMES), advantage.ADVANTAGES),
        (set(RATIOS), ratio.RATIOS),
        (set(REDUCTION_NAMES), reduction.REDUCTIONS),
        (set(CORRECTION_NAMES), correction.CORRECTIONS),
    ],
)
def test_every_name_that_the_spec_takes_is_a_function(names: set[str], table: set[str]) -> None:
    assert names - set(table) == set(), "register each in its module of headway_trainer.objective"


def test_a_loss_that_clips_has_default_bounds() -> None:
    """Without default bounds, a loss would clip nothing unless the job sets some."""
    clips = {
        name
        for name in LOSSES
        if surrogate.SURROGATES[SEQUENCE_LOSSES.get(name, name)].clipped is not surrogate.never_clipped
    }
    assert clips == DEFAULT_BOUNDS.keys(), "these differ in DEFAULT_BOUNDS of headway_api.spec.algorithm"


@pytest.mark.parametrize(
    "name", [*LOSSES, *ADVANTAGE_NAMES, *RATIOS, *REDUCTION_NAMES, *CORRECTION_NAMES], ids=str
)
def test_every_choice_has_a_row_in_the_page_of_algorithms(name: str) -> None:
    assert f"\n| `{name}` |" in PAGE.read_text(), f"add a row of {name} to docs/algorithms.md"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"loss": "mine"}, "spec.algorithm.loss"),
        ({"ratio": "mine"}, "spec.algorithm.ratio"),
        ({"reduction": "mine"}, "spec.algorithm.reduction"),
        ({"correction": "mine"}, "spec.algorithm.correction"),
    ],
)
def test_an_unregistered_name_is_refused(change: dict[str, str], field: str) -> None:
    with pytest.raises(JobError, match="nothing registered 'mine'") as refused:
        of(**change, plugins=["json"])
    assert refused.value.termination.reason == "ObjectiveUnknown"
    assert refused.value.termination.field == field
    assert refused.value.permanent


def test_constant_does_not_guess_a_length() -> None:
    with pytest.raises(ValueError, match="planned length"):
        Objective.of(AlgorithmSpec(reduction="constant")).weights([RowShape("a", 0, 3)])


def drawn(size: int, seed: int = 0, rows: int = 6) -> dict[str, torch.Tensor]:
    """Random tokens of a micro-batch with rows of unequal length, in float64."""
    numbers = torch.Generator().manual_seed(seed)

    def uniform() -> torch.Tensor:
        return torch.rand(size, generator=numbers, dtype=torch.float64)

    sampler = -3 * uniform()
    row = torch.sort(torch.randint(0, rows, (size,), generator=numbers)).values
    return {
        "new": sampler + uniform() - 0.5,
        "sampler": sampler,
        "advantage": torch.randn(rows, generator=numbers, dtype=torch.float64)[row],
        "row": torch.unique(row, return_inverse=True)[1],
        "old": sampler + 3 * uniform() - 1.5,  # far enough that a correction leaves some rows out
        "reference": sampler + uniform() - 0.5,
        "entropy": uniform(),
    }


def shapes(tokens: dict[str, torch.Tensor]) -> list[RowShape]:
    """Shapes of the rows: two rows in each episode, and two episodes in each group.

    The last ones may have fewer.
    """
    sizes = torch.bincount(tokens["row"]).tolist()
    return [RowShape(f"g{n // 4}", n // 2, size) for n, size in enumerate(sizes)]


def loss(
    objective: Objective, tokens: dict[str, torch.Tensor], weight: torch.Tensor, rows: list[int]
) -> tuple[float, torch.Tensor]:
    """The loss of these rows, in this order, and its gradient by every new log-probability."""
    where = torch.cat([(tokens["row"] == row).nonzero().squeeze(1) for row in rows])
    row = torch.cat([torch.full((int((tokens["row"] == r).sum()),), n) for n, r in enumerate(rows)])
    new = tokens["new"].clone().requires_grad_()
    share, _ = objective.token_loss(
        new[where],
        tokens["sampler"][where],
        tokens["advantage"][where],
        weight[where],
        row_T=row,
        old_T=tokens["old"][where],
        reference_T=tokens["reference"][where],
        entropy_T=tokens["entropy"][where],
    )
    share.backward()
    assert new.grad is not None
    return share.item(), new.grad


@settings(max_examples=200)
@given(
    chosen=st.sampled_from(EVERY),
    size=st.integers(1, 60),
    seed=st.integers(0, 99),
    order=st.randoms(),
    cut=st.integers(0, 6),
)
def test_no_division_into_micro_batches_changes_loss_or_gradient(
    chosen: tuple[str, str, str], size: int, seed: int, order: random.Random, cut: int
) -> None:
    name, reduce, correct = chosen
    objective = of(loss=name, reduction=reduce, correction=correct)
    tokens = drawn(size, seed)
    weight = torch.tensor(objective.weights(shapes(tokens)), dtype=torch.float64)[tokens["row"]]
    rows = list(range(len(shapes(tokens))))
    whole, slope = loss(objective, tokens, weight, rows)
    order.shuffle(rows)
    parts = [part for part in (rows[:cut], rows[cut:]) if part]
    found = [loss(objective, tokens, weight, part) for part in parts]
    assert sum(share for share, _ in found) == pytest.approx(whole, rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(sum(grad for _, grad in found), slope, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("reduce", REDUCTION_NAMES)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 99)), min_size=1, max_size=30))
def test_every_token_has_one_positive_weight(reduce: str, found: list[tuple[int, int, int]]) -> None:
    rows = [RowShape(f"g{group}", episode, tokens) for group, episode, tokens in found]
    weights = of(reduction=reduce).weights(rows)
    assert len(weights) == len(rows)
    assert min(weights) > 0
    if reduce != "constant":  # the weights of a mean add up to 1
        total = sum(w * row.action_tokens for w, row in zip(weights, rows, strict=True))
        assert total == pytest.approx(1.0)


def test_reductions_by_hand() -> None:
    # Prompt a: an episode that forked (2 + 4 tokens) and one of 6; prompt b: one of 3.
    rows = [RowShape("a", 0, 2), RowShape("a", 0, 4), RowShape("a", 1, 6), RowShape("b", 0, 3)]
    expected = {
        "token_mean": [1 / 15] * 4,
        "sequence_mean": [1 / 18, 1 / 18, 1 / 18, 1 / 9],
        "prompt_mean": [1 / 24, 1 / 24, 1 / 24, 1 / 6],
        "constant": [1 / (3 * EPISODE_TOKENS)] * 4,
    }
    for name, weights in expected.items():
        assert of(reduction=name).weights(rows) == pytest.approx(weights), name


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("correct", CORRECTION_NAMES)
def test_an_unchanged_policy_has_ratio_1(name: str, correct: str) -> None:
    tokens = drawn(40)
    same = tokens["sampler"].float()
    _, seen = of(loss=name, correction=correct).token_loss(
        same, same, tokens["advantage"].float(), torch.ones(40), row_T=tokens["row"], old_T=same
    )
    np.testing.assert_allclose(seen.ratio_T, 1.0, atol=1e-5)
    np.testing.assert_allclose(seen.correction_T, 1.0, atol=1e-5)
    assert not seen.clipped_T.any()


WITH_LOG_PROBABILITY = {"cispo"}
"""Losses that contain the log-probability itself, and so may be infinite at extreme ones."""


@settings(max_examples=200)
@given(
    st.sampled_from(list(itertools.product(LOSSES, CORRECTION_NAMES))),
    st.lists(st.tuples(EXTREME, EXTREME, EXTREME, st.sampled_from([-3.0, 3.0])), min_size=1, max_size=8),
)
def test_extreme_log_ratios_have_finite_losses_and_gradients(
    names: tuple[str, str], drawn: list[tuple[float, ...]]
) -> None:
    name, correct = names
    sampler, old, new, advantage = torch.tensor(drawn).T
    new = new.clone().requires_grad_()
    chosen = of(loss=name, correction=correct)
    share, _ = chosen.token_loss(
        new, sampler, advantage, torch.full_like(new, 1e-3), row_T=torch.arange(len(drawn)), old_T=old
    )
    share.backward()
    assert new.grad is not None
    assert torch.isfinite(new.grad).all()
    if name not in WITH_LOG_PROBABILITY or new.abs().max() < 1e5:
        assert torch.isfinite(share)


def test_corrections_by_hand() -> None:
    sampler = torch.log(torch.tensor([0.1, 0.2, 0.4, 0.5]))
    old = torch.log(torch.tensor([0.5, 0.1, 0.4, 0.5]))  # old / sampler: 5, 1/2, 1, 1; rows 0 0 0 1
    row = torch.tensor([0, 0, 0, 1])
    expected = {
        "bypass": [1, 1, 1, 1],
        "none": [1, 1, 1, 1],
        "tis": [2, 0.5, 1, 1],
        "decoupled": [5, 0.5, 1, 1],
        "sequence_mask": [1, 1, 1, 1],  # (5/2)^(1/3) is 1.36
    }
    for name, weights in expected.items():
        found = correction.CORRECTIONS[name].function(sampler, old, row, 2.0)
        np.testing.assert_allclose(found[0], sampler if name == "bypass" else old)
        np.testing.assert_allclose(found[1], weights, rtol=1e-6)
    for swapped in ((sampler, old), (old, sampler)):  # the ratio may be too high or too low
        _, weights = correction.CORRECTIONS["sequence_mask"].function(*swapped, row, 1.3)
        assert weights.tolist() == [0, 0, 0, 1]


def test_tokens_of_a_sequence_share_one_ratio_and_one_gradient() -> None:
    new = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    old, row = torch.tensor([-1.3, -1.9, -0.5]), torch.tensor([0, 0, 1])
    found = ratio.RATIOS["sequence"](new, old, row)
    np.testing.assert_allclose(found.detach(), np.exp([0.1, 0.1, 0.0]), rtol=1e-6)
    found.sum().backward()
    np.testing.assert_allclose(new.grad, np.exp([0.1, 0.1, 0.0]), rtol=1e-6)


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [("k1", 0.5, 1.0), ("k2", 0.125, 0.5), ("k3", np.exp(-0.5) - 0.5, 1 - np.exp(-0.5))],
)
def test_the_divergence_is_added_to_each_token(estimator: str, value: float, slope: float) -> None:
    new = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    spec = AlgorithmSpec(kl=Kl(coefficient=0.2, estimator=estimator))
    objective = Objective.of(spec)
    assert objective.penalizes_divergence
    zero = torch.zeros(1, dtype=torch.float64)
    share, seen = objective.token_loss(new, new.detach(), zero, zero + 1, reference_T=new.detach() - 0.5)
    share.backward()
    assert share.item() == pytest.approx(0.2 * value)
    assert seen.divergence_T is not None
    assert seen.divergence_T.item() == pytest.approx(value)
    assert new.grad is not None
    assert new.grad.item() == pytest.approx(0.2 * slope)


@pytest.mark.parametrize("apart", [-25.0, 25.0])
def test_k3_has_no_gradient_beyond_its_log_ratio_limit(apart: float) -> None:
    new = torch.tensor([-30.0, -30.0], dtype=torch.float64, requires_grad=True)
    near = ratio.LOG_RATIO_LIMIT - 1
    found = DIVERGENCES["k3"](new, new.detach() + torch.tensor([apart, near]))
    found.sum().backward()
    cut = np.copysign(ratio.LOG_RATIO_LIMIT, apart)
    assert found[0].item() == pytest.approx(np.exp(cut) - 1 - cut)
    assert new.grad is not None
    assert new.grad.tolist() == [0.0, pytest.approx(1 - np.exp(near))]


def test_entropy_is_subtracted_from_the_loss() -> None:
    objective = Objective.of(AlgorithmSpec(entropy=Entropy(coefficient=0.01)))
    assert objective.rewards_entropy
    entropy = torch.tensor([2.0, 4.0], requires_grad=True)
    zero = torch.zeros(2)
    share, _ = objective.token_loss(zero, zero, zero, zero + 0.5, entropy_T=entropy)
    share.backward()
    assert share.item() == pytest.approx(-0.03)
    assert entropy.grad is not None
    np.testing.assert_allclose(entropy.grad, -0.005)
