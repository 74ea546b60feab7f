"""Intervals against oracles: scipy, full matrices, and properties of every interval."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from simulated import Floats, layout

from headway_analysis.statistics.clusters import clustered, within
from headway_analysis.statistics.estimates import Estimate, Sample, Why, estimate

SIZES = st.lists(st.integers(1, 5), min_size=2, max_size=12)
NUMBERS = st.floats(-100, 100, allow_subnormal=False)


def sample(rows: list[list[float]], *, share: bool = False, names: list[str] | None = None) -> Sample:
    """One value for each try of each row."""
    units = tuple((row, index) for row, values in enumerate(rows) for index in range(len(values)))
    clusters = tuple(names[row] if names else str(row) for row, _ in units)
    values = np.array([value for values in rows for value in values], dtype=float)
    return Sample(units, clusters, values, np.ones(len(values)), share)


def found(each: Sample) -> Estimate:
    result = estimate(each)
    assert result is not None
    return result


@pytest.mark.parametrize("rows", [2, 7, 30, 200])
def test_a_plain_rate_has_scipys_wilson_interval_and_exact_floor(rows: int) -> None:
    for hits in range(rows + 1):
        ours = found(sample([[float(row < hits)] for row in range(rows)], share=True))
        oracle = stats.binomtest(hits, rows)
        wilson, exact = oracle.proportion_ci(method="wilson"), oracle.proportion_ci(method="exact")
        assert (ours.low, ours.high) == pytest.approx((wilson.low, wilson.high), abs=1e-12)
        assert ours.floor == pytest.approx(exact.low, abs=1e-9)
        assert ours.method == "wilson"


@given(st.lists(NUMBERS, min_size=2, max_size=30).filter(lambda values: np.ptp(values) > 1e-3))
def test_one_value_a_row_gives_students_interval(values: list[float]) -> None:
    ours = found(sample([[value] for value in values]))
    oracle = stats.ttest_1samp(values, 0).confidence_interval()
    assert (ours.low, ours.high) == pytest.approx((oracle.low, oracle.high), rel=1e-6, abs=1e-6)


@given(
    st.integers(2, 5).flatmap(
        lambda tries: st.lists(st.lists(NUMBERS, min_size=tries, max_size=tries), min_size=2, max_size=12)
    )
)
def test_equal_clusters_give_students_interval_of_their_means(rows: list[list[float]]) -> None:
    means = [float(np.mean(values)) for values in rows]
    ours = found(sample(rows))
    if np.ptp(means) < 1e-6:
        return
    oracle = stats.ttest_1samp(means, 0).confidence_interval()
    assert (ours.low, ours.high) == pytest.approx((oracle.low, oracle.high), rel=1e-6, abs=1e-6)


def dense(sizes: list[int], values: Floats, correlation: float) -> tuple[float, float]:
    """CR2 variance and Satterthwaite's degrees of freedom from their definition, with full matrices."""
    count = len(values)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    design = np.ones((count, 1))
    hat = np.eye(count) - design @ np.linalg.inv(design.T @ design) @ design.T
    left = np.zeros((len(sizes), count))
    for cluster in range(len(sizes)):
        of = labels == cluster
        eigenvalues, vectors = np.linalg.eigh(hat[np.ix_(of, of)])
        root = vectors @ np.diag(eigenvalues**-0.5) @ vectors.T
        left[cluster] = (design[of].T / count) @ root @ hat[of]
    noise = np.where(labels[:, None] == labels, correlation, 0.0)
    np.fill_diagonal(noise, 1.0)
    form = left @ noise @ left.T
    return float(((left @ values) ** 2).sum()), float(np.trace(form) ** 2 / np.trace(form @ form))


@given(SIZES, st.integers(0, 2**32), st.floats(0, 1))
def test_clustered_variance_and_df_equal_those_of_whole_matrices(
    sizes: list[int], seed: int, correlation: float
) -> None:
    values = np.random.default_rng(seed).normal(size=sum(sizes))
    labels = np.repeat(np.arange(len(sizes)), sizes)
    residuals = np.bincount(labels, values - values.mean())
    ours = clustered(residuals, np.array(sizes, dtype=float), correlation)
    variance, df = dense(sizes, values, correlation)
    assert ours.variance == pytest.approx(variance, rel=1e-6)
    assert ours.df == pytest.approx(max(df, 1.0), rel=1e-6)


def test_correlation_within_clusters_is_the_anova_estimate() -> None:
    rows = np.random.default_rng(3).normal(size=(20, 5)) + np.random.default_rng(4).normal(size=(20, 1))
    inside, between = rows.var(axis=1, ddof=1).mean(), 5 * rows.mean(axis=1).var(ddof=1)
    assert within(rows.ravel(), np.repeat(np.arange(20), 5)) == pytest.approx(
        (between - inside) / (between + 4 * inside)
    )


RATES = st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=6), min_size=2, max_size=15)


@given(RATES)
def test_a_rates_interval_lies_in_0_to_1_around_it_never_empty(
    rows: list[list[float]],
) -> None:
    ours = found(sample(rows, share=True))
    assert ours.low is not None
    assert ours.high is not None
    assert 0 <= ours.low <= ours.value <= ours.high <= 1
    assert ours.high - ours.low > 0.005
    assert ours.floor is not None
    assert 0 <= ours.floor <= ours.value


@given(RATES)
def test_try_order_and_cluster_names_do_not_change_the_interval(rows: list[list[float]]) -> None:
    order = np.random.default_rng(len(rows)).permutation(len(rows))
    one = found(sample(rows, share=True))
    other = found(sample([rows[at][::-1] for at in order], share=True, names=[f"x{at}" for at in order]))
    assert (one.low, one.high) == pytest.approx((other.low, other.high))


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=4, max_size=30), st.integers(2, 8))
def test_tries_that_only_repeat_do_not_narrow_the_interval(values: list[float], tries: int) -> None:
    once = found(sample([[value] for value in values], share=True))
    repeated = found(sample([[value] * tries for value in values], share=True))
    assert once.low is not None
    assert once.high is not None
    assert repeated.low is not None
    assert repeated.high is not None
    assert repeated.high - repeated.low >= 0.95 * (once.high - once.low)


def test_rows_of_one_cluster_count_as_one() -> None:
    rows = [[float(row % 3 > 0)] * 2 for row in range(12)]
    apart = found(sample(rows, share=True))
    together = found(sample(rows, share=True, names=[str(row % 3) for row in range(12)]))
    assert (together.clusters, apart.clusters, together.n) == (3, 12, 12)
    assert together.low is not None
    assert apart.low is not None
    assert together.low < apart.low


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_rate_without_an_exception_still_has_an_interval(value: float) -> None:
    ours = found(sample([[value] * 8] * 30, share=True))
    assert ours.low is not None
    assert ours.high is not None
    assert ours.high - ours.low == pytest.approx(1.96**2 / (30 + 1.96**2), abs=1e-4)


def test_one_cluster_tells_nothing_of_others() -> None:
    ours = found(sample([[1.0, 0.0, 1.0]], share=True))
    assert (ours.value, ours.low, ours.high, ours.why) == (2 / 3, None, None, Why.TOO_FEW_CLUSTERS)


@pytest.mark.parametrize("share", [False, True])
def test_equal_values_have_no_interval(share: bool) -> None:
    ours = found(sample([[0.3, 0.3]] * 9, share=share))
    assert (ours.value, ours.low, ours.why) == (pytest.approx(0.3), None, Why.NO_SPREAD)


def test_a_sample_without_a_value_has_no_estimate() -> None:
    assert estimate(sample([])) is None


@given(st.floats(1e-9, 1e9))
def test_an_interval_scales_with_its_values(scale: float) -> None:
    values = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0])
    one, other = (found(layout([1] * 6)(values * factor, False)) for factor in (1.0, scale))
    assert one.low is not None
    assert other.low == pytest.approx(scale * one.low)
