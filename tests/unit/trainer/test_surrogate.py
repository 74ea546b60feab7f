"""Surrogates: value and gradient against closed forms and against NumPy."""

from __future__ import annotations

import math

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headway_trainer.objective.ratio import LOG_RATIO_LIMIT, token_ratio
from headway_trainer.objective.surrogate import SURROGATES, RatioBounds

CALM = hypothesis.settings(max_examples=50)
Array = NDArray[np.float64]
# Subnormal numbers have fewer digits, so their products would exceed any relative tolerance.
log_probs = st.floats(-12, 0, allow_nan=False, allow_subnormal=False)
tokens = st.lists(
    st.tuples(log_probs, log_probs, st.floats(-3, 3, allow_nan=False, allow_subnormal=False)),
    min_size=1,
    max_size=40,
)


def evaluate(
    loss: str, new: Array, old: Array, advantage: Array, low: float, high: float, dual: float | None = None
) -> tuple[Array, Array]:
    """Loss of each token and its derivative by the token's new log-probability."""
    new_T = torch.tensor(new, requires_grad=True)
    ratio_T = ratio(new_T, old)
    loss_T = SURROGATES[loss].loss(ratio_T, new_T, torch.tensor(advantage), RatioBounds(low, high, dual))
    loss_T.sum().backward()
    assert new_T.grad is not None
    return loss_T.detach().numpy(), new_T.grad.numpy()


def ratio(new_T: torch.Tensor, old: Array) -> torch.Tensor:
    return token_ratio(new_T, torch.tensor(old), torch.zeros(len(old), dtype=torch.long))


def columns(rows: list[tuple[float, float, float]]) -> tuple[Array, Array, Array]:
    new, old, advantage = np.array(rows, dtype=np.float64).T
    return new, old, advantage


@CALM
@given(tokens)
def test_importance_sampling_follows_its_formula(rows: list[tuple[float, float, float]]) -> None:
    new, old, advantage = columns(rows)
    value, slope = evaluate("importance_sampling", new, old, advantage, 0.0, math.inf)
    np.testing.assert_allclose(value, -np.exp(new - old) * advantage, rtol=1e-12)
    np.testing.assert_allclose(slope, -np.exp(new - old) * advantage, rtol=1e-12)


@CALM
@given(tokens)
def test_ppo_follows_its_formula(rows: list[tuple[float, float, float]]) -> None:
    new, old, advantage = columns(rows)
    ratio = np.exp(new - old)
    value, slope = evaluate("ppo", new, old, advantage, 0.8, 1.2)
    np.testing.assert_allclose(
        value, -np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage), rtol=1e-12
    )
    beyond = np.where(advantage > 0, ratio > 1.2, ratio < 0.8)
    settled = np.abs(ratio - 0.8) + np.abs(ratio - 1.2) > 0.4 + 1e-9  # not on a kink
    inside = (ratio > 0.8 + 1e-9) & (ratio < 1.2 - 1e-9)
    smooth = settled | inside
    expected = np.where(beyond, 0.0, -ratio * advantage)
    np.testing.assert_allclose(slope[smooth], expected[smooth], rtol=1e-12, atol=1e-15)


@CALM
@given(tokens)
def test_cispo_follows_its_formula(rows: list[tuple[float, float, float]]) -> None:
    new, old, advantage = columns(rows)
    weight = np.minimum(np.exp(new - old), 6.0)
    value, slope = evaluate("cispo", new, old, advantage, 1.0, 6.0)
    np.testing.assert_allclose(value, -weight * advantage * new, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(slope, -weight * advantage, rtol=1e-12)


def test_ppo_by_hand() -> None:
    old = np.log(np.array([0.5, 0.5, 0.5, 0.5]))
    new = np.log(np.array([0.75, 0.75, 0.25, 0.25]))  # ratios 1.5, 1.5, 0.5, 0.5
    value, slope = evaluate("ppo", new, old, np.array([1.0, -1.0, 1.0, -1.0]), 0.8, 1.2)
    np.testing.assert_allclose(value, [-1.2, 1.5, -0.5, 0.8], rtol=1e-12)
    np.testing.assert_allclose(slope, [0.0, 1.5, -0.5, 0.0], rtol=1e-12)


@pytest.mark.parametrize("loss", sorted(SURROGATES))
@CALM
@given(rows=st.lists(st.tuples(log_probs, st.floats(-3, 3, allow_nan=False)), min_size=1, max_size=20))
def test_on_policy_every_loss_has_the_policy_gradient(loss: str, rows: list[tuple[float, float]]) -> None:
    new, advantage = np.array(rows, dtype=np.float64).T
    _, slope = evaluate(loss, new, new.copy(), advantage, 0.8, 1.2)
    np.testing.assert_allclose(slope, -advantage, rtol=1e-12, atol=1e-300)


@CALM
@given(tokens, st.sampled_from([None, 3.0]))
def test_clipped_tokens_of_ppo_are_those_without_gradient(
    rows: list[tuple[float, float, float]], dual: float | None
) -> None:
    new, old, advantage = columns(rows)
    _, slope = evaluate("ppo", new, old, advantage, 0.8, 1.2, dual)
    clipped = SURROGATES["ppo"].clipped(
        ratio(torch.tensor(new), old), torch.tensor(advantage), RatioBounds(0.8, 1.2, dual)
    )
    assert not slope[clipped.numpy()].any()
    moving = ~clipped.numpy() & (np.abs(advantage) > 1e-300)
    assert np.count_nonzero(slope[moving]) == np.count_nonzero(moving)


def test_a_dual_bound_by_hand() -> None:
    old = np.log(np.array([0.1, 0.1, 0.1]))
    new = np.log(np.array([0.5, 0.2, 0.5]))  # ratios 5, 2, 5
    value, slope = evaluate("ppo", new, old, np.array([-1.0, -1.0, 1.0]), 0.8, 1.2, 3.0)
    np.testing.assert_allclose(value, [3.0, 2.0, -1.2], rtol=1e-12)
    np.testing.assert_allclose(slope, [0.0, 2.0, 0.0], rtol=1e-12)


def test_a_token_of_probability_zero_has_a_finite_loss() -> None:
    new_T = torch.tensor([0.0], requires_grad=True)
    ratio_T = ratio(new_T, np.array([-1e4], dtype=np.float32))
    assert ratio_T.item() == pytest.approx(math.exp(LOG_RATIO_LIMIT), rel=1e-6)
