"""Advantages against closed forms, numbers worked out by hand, and NumPy."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway_trainer.objective.advantage import ADVANTAGES, Normalize, group_based

rewards = st.lists(st.floats(-100, 100, allow_nan=False, width=32), min_size=2, max_size=32)
normalizations = st.sampled_from(["std", "none"])


def tensor(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_by_hand_one_success_in_four() -> None:
    # mean 1/4, unbiased variance (9/16 + 3/16) / 3 = 1/4, deviation 1/2
    expected = np.array([1.5, -0.5, -0.5, -0.5]) * (0.5 / (0.5 + 1e-6))
    np.testing.assert_allclose(group_based(tensor([1, 0, 0, 0]), "std"), expected, rtol=1e-12)


def test_by_hand_without_normalization() -> None:
    np.testing.assert_allclose(group_based(tensor([1, 0, 0.5]), "none"), [0.5, -0.5, 0.0], atol=1e-15)


@given(rewards)
def test_std_agrees_with_numpy(values: list[float]) -> None:
    array = np.array(values)
    if array.min() == array.max():
        expected = np.zeros(len(array))
    else:
        expected = (array - np.mean(array)) / (np.std(array, ddof=1) + 1e-6)
    np.testing.assert_allclose(group_based(tensor(values), "std"), expected, rtol=1e-9, atol=1e-12)


@given(st.floats(-1e3, 1e3, allow_nan=False), st.integers(1, 32), normalizations)
def test_equal_rewards_have_no_advantage_at_all(value: float, size: int, normalize: Normalize) -> None:
    # 0.1 has no exact mean: a deviation of rounding error must not be divided by itself.
    assert not group_based(tensor([value] * size), normalize).any()


@given(rewards, normalizations, st.randoms())
def test_permuting_a_group_permutes_its_advantages(
    values: list[float], normalize: Normalize, rng: Random
) -> None:
    order = list(range(len(values)))
    rng.shuffle(order)
    straight = group_based(tensor(values), normalize)
    permuted = group_based(tensor([values[i] for i in order]), normalize)
    np.testing.assert_allclose(permuted, straight[order], rtol=1e-9, atol=1e-9)


@given(
    st.lists(st.integers(-50, 50), min_size=2, max_size=16),
    st.integers(-1000, 1000),
    normalizations,
)
def test_a_constant_added_to_every_reward_changes_nothing(
    values: list[int], shift: int, normalize: Normalize
) -> None:
    moved = group_based(tensor([float(v + shift) for v in values]), normalize)
    np.testing.assert_allclose(moved, group_based(tensor([float(v) for v in values]), normalize), atol=1e-9)


@given(rewards, normalizations)
def test_advantages_sum_to_nothing(values: list[float], normalize: Normalize) -> None:
    assert abs(float(group_based(tensor(values), normalize).sum())) < 1e-7 * (1 + max(map(abs, values)))


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=16), st.integers(1, 20))
def test_std_takes_the_scale_away(values: list[int], scale: int) -> None:
    one = group_based(tensor([float(v) for v in values]), "std")
    many = group_based(tensor([float(v * scale) for v in values]), "std")
    np.testing.assert_allclose(one, many, atol=1e-4)


@pytest.mark.parametrize("method", sorted(ADVANTAGES))
def test_a_lone_episode_says_nothing(method: str) -> None:
    assert ADVANTAGES[method](tensor([3.0]), "std").tolist() == [0.0]
