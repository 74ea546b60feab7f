"""Advantages against closed forms, numbers worked out by hand and NumPy, and properties of all methods."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_api.objective import uniform
from headway_trainer.objective.advantage import (
    ADVANTAGES,
    AdvantageSettings,
    Normalize,
    Numbers,
    Scored,
    group_based,
)

CALM = hypothesis.settings(max_examples=50)
STD, PLAIN = AdvantageSettings("std"), AdvantageSettings("none")
BASELINED = (
    "group_based",
    "group_based_per_turn",
    "rloo",
    "opo",
    "grpo_passk",
    "gpg",
    "reinforce_pp_baseline",
)
METHODS = sorted(ADVANTAGES)
rewards = st.lists(st.floats(-100, 100, allow_nan=False, width=32), min_size=2, max_size=32)
settings = st.sampled_from([STD, PLAIN])


def episode(reward: float, *tokens: int) -> Scored:
    return Scored(reward, tokens or (1,))


def by_turns(*turn_rewards: float, tokens: int = 1) -> Scored:
    return Scored(sum(turn_rewards), (tokens,) * len(turn_rewards), turn_rewards)


@st.composite
def batches(draw: st.DrawFn, smallest: int = 2) -> list[list[Scored]]:
    """Groups of unequal sizes. Episodes have unequal lengths and integer rewards, some of them by turn."""

    def one() -> Scored:
        turns = draw(st.integers(1, 4))
        tokens = tuple(draw(st.integers(1, 9)) for _ in range(turns))
        earned = tuple(float(draw(st.integers(-3, 3))) for _ in range(turns))
        return Scored(sum(earned), tokens, draw(st.sampled_from([None, earned])))

    sizes = draw(st.lists(st.integers(smallest, 5), min_size=1, max_size=4))
    return [[one() for _ in range(size)] for size in sizes]


def flat(found: Sequence[Sequence[Numbers]]) -> Numbers:
    return np.concatenate([turns for group in found for turns in group])


def of_group(method: str, group: Sequence[Scored], chosen: AdvantageSettings = STD) -> list[list[float]]:
    return [turns.tolist() for turns in ADVANTAGES[method]([group], chosen)[0]]


def test_one_success_in_four_equals_a_calculation_by_hand() -> None:
    # mean 1/4, unbiased variance (9/16 + 3/16) / 3 = 1/4, deviation 1/2
    expected = np.array([1.5, -0.5, -0.5, -0.5]) * (0.5 / (0.5 + 1e-6))
    found = of_group("group_based", [episode(r) for r in (1, 0, 0, 0)])
    np.testing.assert_allclose(np.ravel(found), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("method", "chosen", "expected"),
    [
        ("group_based", PLAIN, [0.5, -0.5, 0.0]),
        ("rloo", STD, [0.75, -0.75, 0.0]),  # 1 less the mean of 0 and 1/2
        ("opo", STD, [0.65, -0.35, 0.15]),  # lengths 2, 5, 3: mean (2 + 1.5) / 10
        ("grpo_passk", PLAIN, [0.5, 0.0, 0.0]),
        ("grpo_passk", STD, [0.5 / (0.5 + 1e-6), 0.0, 0.0]),
        ("gpg", STD, [0.5, -0.5, 0.0]),
        ("monte_carlo", STD, [1.0, 0.0, 0.5]),
    ],
)
def test_each_method_equals_a_calculation_by_hand(
    method: str, chosen: AdvantageSettings, expected: list[float]
) -> None:
    group = [episode(1.0, 2), episode(0.0, 5), episode(0.5, 3)]
    np.testing.assert_allclose(np.ravel(of_group(method, group, chosen)), expected, atol=1e-12)


def test_gpg_scales_up_for_groups_without_a_gradient() -> None:
    groups = [[episode(1.0), episode(0.0)], [episode(1.0)] * 4]
    found = ADVANTAGES["gpg"](groups, STD)
    np.testing.assert_allclose(flat(found), [3 * 0.5, 3 * -0.5, 0, 0, 0, 0])


def test_returns_are_discounted_by_the_turn() -> None:
    discounted = AdvantageSettings(gamma=0.5)
    assert of_group("monte_carlo", [by_turns(1, 2, 4)], discounted) == [[3.0, 4.0, 4.0]]
    assert of_group("monte_carlo", [episode(8.0, 5, 1, 2)], discounted) == [[2.0, 4.0, 8.0]]


def test_whitening_counts_a_turn_by_its_tokens() -> None:
    group = [episode(3.0, 1, 2), episode(0.0, 3)]
    found = ADVANTAGES["reinforce_pp"]([group], STD)
    values, tokens = flat(found), np.array([1, 2, 3])
    every = np.repeat(values, tokens)
    assert abs(every.mean()) < 1e-12
    np.testing.assert_allclose(every.std(ddof=1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(values[0], 1.5 / np.sqrt(2.7 + 1e-8))  # variance 6 * 2.25 / 5


def test_per_turn_equals_a_calculation_by_hand() -> None:
    # Returns-to-go: [1, 0], [2, 2], [4]; at turn 1 the last episode has ended.
    group = [by_turns(1, 0), by_turns(0, 2), by_turns(4)]
    found = of_group("group_based_per_turn", group, PLAIN)
    np.testing.assert_allclose(found[0], [1 - 7 / 3, -1])
    np.testing.assert_allclose(found[1], [2 - 7 / 3, 1])
    np.testing.assert_allclose(found[2], [4 - 7 / 3])


def test_a_turn_only_one_episode_reached_has_zero_advantage() -> None:
    found = of_group("group_based_per_turn", [by_turns(1, 0, 5), by_turns(0, 2)])
    assert found[0][2] == 0.0


@CALM
@given(batches(), settings)
def test_without_rewards_of_turns_per_turn_is_group_based(
    groups: list[list[Scored]], chosen: AdvantageSettings
) -> None:
    plain = [[Scored(e.reward, e.turn_tokens) for e in group] for group in groups]
    one = flat(ADVANTAGES["group_based_per_turn"](plain, chosen))
    np.testing.assert_array_equal(one, flat(ADVANTAGES["group_based"](plain, chosen)))


@CALM
@given(rewards)
def test_std_agrees_with_numpy(values: list[float]) -> None:
    array = np.array(values)
    if uniform(values):
        expected = np.zeros(len(array))
    else:
        expected = (array - np.mean(array)) / (np.std(array, ddof=1) + 1e-6)
    np.testing.assert_allclose(group_based(array, array, STD), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", BASELINED)
@CALM
@given(value=st.floats(-1e3, 1e3, allow_nan=False), size=st.integers(2, 32), chosen=settings)
def test_equal_rewards_have_no_advantage_at_all(
    method: str, value: float, size: int, chosen: AdvantageSettings
) -> None:
    # The mean of equal values may be inexact. A deviation of rounding errors must not be a divisor.
    assert not np.any(of_group(method, [episode(value, 1 + n) for n in range(size)], chosen))


SUMS = [0.1 + 0.2, 0.3, 0.3]
"""Sums of the same parts in different orders. They differ by up to 6e-17."""


@pytest.mark.parametrize("method", BASELINED)
@pytest.mark.parametrize("size", [-1e6, 1e-6, 1.0, 1e6])
@pytest.mark.parametrize("offset", [0.0, -0.3])
def test_rewards_equal_up_to_rounding_have_zero_advantage(method: str, size: float, offset: float) -> None:
    sums = [size * (value + offset) for value in SUMS]
    assert len(set(sums)) == 2
    group = [episode(value, 1 + n) for n, value in enumerate(sums)]
    assert not np.any(of_group(method, group))
    by_turn = [by_turns(value, 0.0) for value in sums]
    assert not np.any(of_group("group_based_per_turn", by_turn))


def test_the_best_reward_must_be_best_beyond_rounding() -> None:
    assert not np.any(of_group("grpo_passk", [episode(r) for r in (*SUMS, 0.0)]))


def test_float32_sums_in_another_order_are_the_same_reward() -> None:
    """The sums differ by rounding errors, which division by a tiny deviation would enlarge to 0.1."""
    parts = np.random.default_rng(0).random(9).astype(np.float32)
    orders = [np.random.default_rng(seed).permutation(parts) for seed in range(8)]
    sums = [float(np.add.reduce(order)) for order in orders]
    sums += [float(sum(order, start=np.float32(0))) for order in orders]
    assert 1e-9 < max(sums) - min(sums) < 1e-5
    for method in ("group_based", "rloo", "opo", "grpo_passk", "gpg", "reinforce_pp_baseline"):
        assert not np.any(of_group(method, [episode(reward) for reward in sums])), method
    # A difference of a few last digits of float32 is ignored, but one of 1 in 30,000 is not.
    assert np.all(of_group("group_based", [episode(float(np.float32(r))) for r in (0.3, 0.30001)]))


@pytest.mark.parametrize("apart", [1e-8, 1e-3])
def test_rewards_that_differ_by_little_do_differ(apart: float) -> None:
    assert np.all(of_group("group_based", [episode(r) for r in (0.3, 0.3 + apart)]))
    assert np.all(of_group("group_based", [episode(r) for r in (1e6, 1e6 * (1 + apart))]))


@pytest.mark.parametrize("method", METHODS)
@CALM
@given(groups=batches(), chosen=settings, rng=st.randoms())
def test_permuting_a_batch_permutes_its_advantages(
    method: str, groups: list[list[Scored]], chosen: AdvantageSettings, rng: Random
) -> None:
    orders = [rng.sample(range(len(group)), len(group)) for group in groups]
    straight = ADVANTAGES[method](groups, chosen)
    permuted = ADVANTAGES[method](
        [[group[i] for i in order] for group, order in zip(groups, orders, strict=True)][::-1], chosen
    )[::-1]
    for was, now, order in zip(straight, permuted, orders, strict=True):
        for place, index in enumerate(order):
            np.testing.assert_allclose(now[place], was[index], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", BASELINED)
@CALM
@given(groups=batches(), shift=st.integers(-100, 100), chosen=settings)
def test_a_constant_added_to_every_reward_changes_nothing(
    method: str, groups: list[list[Scored]], shift: int, chosen: AdvantageSettings
) -> None:
    # The constant is a final reward, so episodes have no rewards by turn here. The next test has them.
    plain = [[Scored(e.reward, e.turn_tokens) for e in group] for group in groups]
    moved = [[Scored(e.reward + shift, e.turn_tokens) for e in group] for group in plain]
    np.testing.assert_allclose(
        flat(ADVANTAGES[method](moved, chosen)), flat(ADVANTAGES[method](plain, chosen)), atol=1e-9
    )


@CALM
@given(batches(), st.integers(-100, 100), settings)
def test_a_constant_on_the_last_turn_keeps_per_turn_advantages(
    groups: list[list[Scored]], shift: int, chosen: AdvantageSettings
) -> None:
    by_turn = [[by_turns(*(e.turn_rewards or [e.reward])) for e in group] for group in groups]
    moved = [[by_turns(*e.turn_rewards[:-1], e.turn_rewards[-1] + shift) for e in group] for group in by_turn]  # type: ignore[index]
    np.testing.assert_allclose(
        flat(ADVANTAGES["group_based_per_turn"](moved, chosen)),
        flat(ADVANTAGES["group_based_per_turn"](by_turn, chosen)),
        atol=1e-9,
    )


@CALM
@given(rewards, settings)
def test_advantages_of_a_group_sum_to_zero(values: list[float], chosen: AdvantageSettings) -> None:
    found = group_based(np.array(values), np.ones(len(values)), chosen)
    assert abs(found.sum()) < 1e-7 * (1 + max(map(abs, values)))


@CALM
@given(st.lists(st.integers(-50, 50), min_size=2, max_size=16), st.integers(1, 20))
def test_std_removes_the_scale(values: list[int], scale: int) -> None:
    one = group_based(np.array(values, float), np.ones(len(values)), STD)
    many = group_based(np.array(values, float) * scale, np.ones(len(values)), STD)
    np.testing.assert_allclose(one, many, atol=1e-4)


@pytest.mark.parametrize("method", sorted(set(BASELINED) - {"rloo"}))
def test_a_lone_episode_says_nothing(method: str) -> None:
    assert of_group(method, [episode(3.0, 2, 1)]) == [[0.0, 0.0]]


def test_a_lone_episode_keeps_its_reward_in_rloo_and_mc() -> None:
    assert of_group("rloo", [episode(3.0, 2)]) == [[3.0]]
    assert of_group("monte_carlo", [episode(3.0, 2)]) == [[3.0]]


@pytest.mark.parametrize("method", METHODS)
@CALM
@given(groups=batches(smallest=1), normalize=st.sampled_from(["std", "none"]), gamma=st.floats(0, 1))
def test_every_turn_has_one_finite_advantage(
    method: str, groups: list[list[Scored]], normalize: Normalize, gamma: float
) -> None:
    found = ADVANTAGES[method](groups, AdvantageSettings(normalize, gamma))
    assert [[len(turns) for turns in group] for group in found] == [
        [len(e.turn_tokens) for e in group] for group in groups
    ]
    assert np.isfinite(flat(found)).all()


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_batch_has_no_advantages(method: str) -> None:
    assert ADVANTAGES[method]([], STD) == []
    assert ADVANTAGES[method]([[]], STD) == [[]]
