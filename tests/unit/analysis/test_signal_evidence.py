"""The statistics that several judges use, compared with SciPy's."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import binomtest, chi2_contingency, ttest_ind

from headway_analysis.signals.definition import Level
from headway_analysis.signals.evidence import EPISODES, above, below, design_effect, level, pooled, shift
from headway_analysis.signals.history import History, Job, Series

JOB = Job(0.0, 1.0, 3)
values = st.lists(st.floats(-10, 10).map(lambda value: round(value, 3)), min_size=2, max_size=8)


def history(rates: list[float | None], counts: list[float]) -> History:
    steps = Series()
    for step, (rate, count) in enumerate(zip(rates, counts, strict=True), 1):
        steps.put(step, {EPISODES: count} | ({} if rate is None else {"rate": rate}))
    return History(JOB, steps, Series(), len(rates))


@given(values, values)
def test_a_shift_has_welchs_interval(earlier: list[float], recent: list[float]) -> None:
    assume(len({*earlier}) > 1 or len({*recent}) > 1)
    found = shift(earlier, recent)
    expected = ttest_ind(recent, earlier, equal_var=False).confidence_interval(0.95)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-6, abs=1e-9)


def test_constant_values_shift_by_exactly_their_distance() -> None:
    found = shift([1.0, 1.0], [3.0, 3.0, 3.0])
    assert found is not None
    assert (found.value, found.low, found.high, found.rises) == (2.0, 2.0, 2.0, True)
    same = shift([1.0, 1.0], [1.0, 1.0])
    assert same is not None
    assert not same.rises
    assert not same.falls


@pytest.mark.parametrize(("earlier", "recent"), [([], [1.0, 2.0]), ([1.0], [1.0, 2.0]), ([1.0, 2.0], [1.0])])
def test_a_single_value_gives_no_shift(earlier: list[float], recent: list[float]) -> None:
    assert shift(earlier, recent) is None


@given(st.lists(st.integers(0, 24), min_size=1, max_size=6))
def test_a_pooled_share_has_the_exact_binomial_interval(hits: list[int]) -> None:
    """Batches that differ by more than luck are a case of their own."""
    assume(design_effect([(hit / 24, 24.0) for hit in hits]) == 1)
    found = pooled(history([hit / 24 for hit in hits], [24.0] * len(hits)), "rate", 10)
    expected = binomtest(sum(hits), 24 * len(hits)).proportion_ci(0.99, "exact")
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert found.value == pytest.approx(sum(hits) / (24 * len(hits)))


@given(st.lists(st.integers(0, 24), min_size=2, max_size=6))
def test_batches_that_differ_widen_the_interval(hits: list[int]) -> None:
    found = pooled(history([hit / 24 for hit in hits], [24.0] * len(hits)), "rate", 10)
    exact = binomtest(sum(hits), 24 * len(hits)).proportion_ci(0.99, "exact")
    assert found is not None
    assume(design_effect([(hit / 24, 24.0) for hit in hits]) > 1.01)
    assert found.low < exact.low
    assert found.high > exact.high
    assert found.low <= found.value <= found.high


def test_the_design_effect_is_pearsons_chi_square_over_its_df() -> None:
    table = [[18, 6, 0], [6, 18, 24]]
    expected = chi2_contingency(table, correction=False).statistic / 2
    assert design_effect([(18 / 24, 24.0), (6 / 24, 24.0), (0.0, 24.0)]) == pytest.approx(expected)
    assert expected == pytest.approx(15.75)
    assert design_effect([(0.5, 24.0), (0.5, 12.0)]) == 1.0
    for same in (0.0, 1.0):
        assert design_effect([(same, 24.0), (same, 24.0)]) == 1.0
    assert design_effect([(0.5, 24.0)]) == design_effect([]) == 1.0


def test_a_share_counts_only_steps_that_have_it() -> None:
    found = pooled(history([0.5, None, 1.0, 0.25], [10.0, 10.0, 0.0, 20.0]), "rate", 4)
    assert found is not None
    assert (found.value, found.total) == (pytest.approx(1 / 3), 30.0)
    assert pooled(history([None], [10.0]), "rate", 4) is None
    assert pooled(history([0.5], [0.0]), "rate", 4) is None


def test_a_level_resists_one_outlier_and_needs_enough_values() -> None:
    assert level([1.0, 1.1, 99.0], 3) == 1.1
    assert level([1.0, 1.1], 3) is None


def test_a_numbers_level_follows_from_both_thresholds() -> None:
    assert [above(value, 2.0, 1.0) for value in (0.5, 1.0, 1.5, 2.0, 2.5)] == [
        Level.CLEAR, Level.CLEAR, Level.BETWEEN, Level.BETWEEN, Level.OVER,
    ]  # fmt: skip
    assert [below(value, 1.0, 2.0) for value in (0.5, 1.0, 1.5, 2.0, 2.5)] == [
        Level.OVER, Level.BETWEEN, Level.BETWEEN, Level.CLEAR, Level.CLEAR,
    ]  # fmt: skip
