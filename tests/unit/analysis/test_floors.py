"""Lower bounds for the mean of bounded values: Gaffke's bound, and the same in the recount."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from recounting import recount_module
from scipy import stats
from simulated import Floats, layout

from headway_analysis.statistics import floors
from headway_analysis.statistics.differences import least_gain
from headway_analysis.statistics.floors import least_mean, least_value

RNG = np.random.default_rng(21)


@pytest.mark.parametrize("rows", [2, 6, 30, 400, 5000])
@pytest.mark.parametrize("failures", [0, 1, "half"])
def test_the_bound_of_a_rate_is_clopper_and_pearsons_lower_bound(rows: int, failures: int | str) -> None:
    hits = rows // 2 if failures == "half" else rows - int(failures)
    found = least_mean((np.arange(rows) < hits).astype(float), np.ones(rows), 0.0)
    assert found == pytest.approx(stats.beta.ppf(0.025, hits, rows - hits + 1), abs=1e-5)


def drawn(values: Floats, weights: Floats, worst: float) -> float:
    """The same bound from 200,000 random weights."""
    exponential = np.random.default_rng(1).exponential(size=(200_000, len(values) + 1))
    sizes = exponential * np.append(weights, weights.max())
    return float(np.quantile(sizes @ np.append(values, worst) / sizes.sum(axis=1), 0.025))


@pytest.mark.parametrize("rows", [6, 30])
@pytest.mark.parametrize("worst", [0.0, -1.0])
def test_drawn_random_weights_give_the_same_bound(rows: int, worst: float) -> None:
    values, weights = RNG.uniform(worst, 1, rows), RNG.integers(1, 5, rows).astype(float)
    found = least_mean(values, weights, worst)
    assert found == pytest.approx(drawn(values, weights, worst), abs=0.003)


def test_no_mean_is_below_the_worst_value() -> None:
    assert least_mean(np.zeros(30), np.ones(30), 0.0) == 0.0


def test_a_cluster_without_weight_does_not_count() -> None:
    values, weights = np.array([0.9, 0.8, 1.0, 0.1]), np.array([1.0, 2.0, 1.0, 0.0])
    assert least_mean(values, weights, 0.0) == least_mean(values[:3], weights[:3], 0.0)


def test_the_supposed_cluster_is_as_large_as_the_largest() -> None:
    """The cluster that the bound adds.

    One cluster has half of the weight, so the added one may be as large, and fail.
    """
    weights = np.array([58.0] + [2.0] * 29)
    assert least_mean(np.ones(30), weights, 0.0) == pytest.approx(drawn(np.ones(30), weights, 0.0), abs=0.003)
    assert least_mean(np.ones(30), weights, 0.0) < 0.5 < least_mean(np.ones(30), np.ones(30), 0.0)


def test_very_many_values_never_raise_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    values = RNG.random(300)
    exact = least_mean(values, np.ones(300), 0.0)
    monkeypatch.setattr(floors, "STEPS", 100)
    assert exact - 0.01 <= least_mean(values, np.ones(300), 0.0) <= exact


def test_an_amount_has_no_least_value_or_gain() -> None:
    amounts = layout([1] * 30)(RNG.normal(size=30), False)
    assert least_value(amounts, None) is None
    assert least_gain(amounts, amounts, ends=None) is None


def test_a_range_below_0_lowers_both_bounds() -> None:
    make = layout([1] * 30)
    ours, theirs = make(RNG.random(30), True), make(RNG.random(30), True)
    shares, rewards = least_value(ours), least_value(ours, (-1.0, 1.0))
    assert shares is not None
    assert rewards is not None
    assert rewards == least_mean(ours.tops, np.ones(30), -1.0) < shares
    gains = least_gain(ours, theirs), least_gain(ours, theirs, ends=(-1.0, 1.0))
    assert gains[0] is not None
    assert gains[1] is not None
    assert gains[1] < gains[0]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_gain_supposes_a_cluster_that_loses_all(sign: int) -> None:
    make = layout([1] * 30)
    ours, theirs = RNG.random(30), RNG.random(30)
    found = least_gain(make(ours, True), make(theirs, True), sign)
    assert found == pytest.approx(least_mean(sign * (ours - theirs), np.ones(30), -1.0))


@pytest.mark.parametrize("sizes", [[1] * 30, [1, 2, 3, 2] * 3])
def test_the_recount_has_the_same_bounds(sizes: list[int]) -> None:
    recount_module()
    recount = sys.modules["recount_statistics"]
    make = layout(sizes, 2)
    ours, theirs = ((RNG.random(2 * sum(sizes)) < share).astype(float) for share in (0.9, 0.7))
    one, other = make(ours, True), make(theirs, True)
    counted, base = (
        {
            unit: recount.Value(cluster, top, 1.0)
            for unit, cluster, top in zip(each.units, each.clusters, each.tops.tolist(), strict=True)
        }
        for each in (one, other)
    )
    assert recount.least_value(counted) == pytest.approx(least_value(one), abs=1e-6)
    assert recount.least_value(counted, -1.0) == pytest.approx(least_value(one, (-1.0, 1.0)), abs=1e-6)
    for sign in (1, -1):
        for ends in ((0.0, 1.0), (-1.0, 1.0)):
            assert recount.least_gain(counted, base, sign, ends[0] - ends[1]) == pytest.approx(
                least_gain(one, other, sign, ends), abs=1e-6
            )
