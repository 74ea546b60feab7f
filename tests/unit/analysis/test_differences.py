"""Paired differences against oracles: scipy, all sign flips, and all subsets of Holm's procedure."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from simulated import layout

from headway_analysis.statistics import differences
from headway_analysis.statistics.differences import Difference, Finding, compare, corrected, holm, sign_flip
from headway_analysis.statistics.estimates import Sample


def plain(values: list[float], *, share: bool = False) -> Sample:
    """A sample with one value for each row."""
    return layout([1] * len(values))(np.array(values, dtype=float), share)


def found(ours: list[float], theirs: list[float], *, share: bool = False) -> Difference:
    result = compare(plain(ours, share=share), plain(theirs, share=share))
    assert result is not None
    return result


@given(st.lists(st.integers(-9, 9), min_size=6, max_size=25), st.integers(0, 2**32))
@settings(deadline=None)
def test_without_ties_the_interval_is_that_of_a_paired_t_test(values: list[int], seed: int) -> None:
    noise = np.random.default_rng(seed).normal(size=(2, len(values)))
    ours, theirs = list(values + noise[0]), list(noise[1])
    result = found(ours, theirs)
    oracle = stats.ttest_rel(ours, theirs).confidence_interval()
    assert result.value == pytest.approx(np.mean(ours) - np.mean(theirs), abs=1e-9)
    assert (result.low, result.high) == pytest.approx((oracle.low, oracle.high), rel=1e-6, abs=1e-6)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=6, max_size=40))
@settings(deadline=None)
def test_two_added_pairs_widen_intervals_by_how_alike_pairs_are(
    pairs: list[tuple[bool, bool]],
) -> None:
    result = found([float(a) for a, _ in pairs], [float(b) for _, b in pairs], share=True)
    count, differ = len(pairs), [a - b for a, b in pairs]
    weight = (max(map(differ.count, differ)) - 1) / (count - 1)
    whole = count + 2 * weight
    centre = sum(differ) / whole
    squares = sum((d - centre) ** 2 for d in differ) / (1 - 1 / whole)
    squares += weight * ((1 - centre) ** 2 + (1 + centre) ** 2) / (1 - weight / whole)
    error = np.sqrt(squares) / whole
    assert result.low is not None
    assert result.high is not None
    for end in (result.low, result.high):
        if abs(end) < 1:
            widest, least = (stats.t.ppf(0.975, df) * error for df in (count - 1, count + 1))
            assert least * 0.999 <= abs(end - centre) <= widest * 1.001


def test_equal_pairs_get_the_bonett_price_interval_with_t() -> None:
    result = found([1.0] * 30, [1.0] * 30, share=True)
    half = stats.t.ppf(0.975, 31) * np.sqrt(2 / 32 / 31)
    assert (result.low, result.high) == pytest.approx((-half, half))


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=9))
@settings(deadline=None)
def test_the_p_value_counts_every_flip_of_signs(shares: list[int]) -> None:
    sums = [
        abs(sum(s * x for s, x in zip(signs, shares, strict=True)))
        for signs in product((1, -1), repeat=len(shares))
    ]
    exact = sum(total >= abs(sum(shares)) for total in sums) / len(sums)
    assert sign_flip(np.array(shares, dtype=float)) == pytest.approx(
        exact if sum(x != 0 for x in shares) > 1 else 1.0
    )


def test_drawn_flips_come_near_the_exact_p_value() -> None:
    shares = np.random.default_rng(5).normal(0.5, 1, 16)
    sums = np.array(list(product((1.0, -1.0), repeat=16))) @ shares
    exact = float((np.abs(sums) >= abs(shares.sum()) - 1e-12).mean())
    assert 0.005 < exact < 0.2
    assert sign_flip(shares) == pytest.approx(exact, abs=4 * np.sqrt(exact / differences.RESAMPLES))
    assert sign_flip(shares) == sign_flip(shares)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closed_test_of_bonferroni(ps: list[float]) -> None:
    expected = []
    for at in range(len(ps)):
        others = [other for other in range(len(ps)) if other != at]
        groups = [(at, *more) for size in range(len(ps)) for more in combinations(others, size)]
        expected.append(max(min(1.0, len(group) * min(ps[i] for i in group)) for group in groups))
    assert holm(ps) == pytest.approx(expected)


def test_only_differences_with_a_p_value_are_corrected() -> None:
    base = [float(row % 2) for row in range(20)]
    with_p = found([1.0] * 20, base, share=True)
    without_p = found([1.0, 0.0], [0.0, 0.0], share=True)
    assert with_p.p is not None
    again = corrected([with_p, without_p, with_p])
    assert [each.p_holm for each in again] == [pytest.approx(2 * with_p.p), None, pytest.approx(2 * with_p.p)]


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=6, max_size=20))
@settings(deadline=None)
def test_the_difference_the_other_way_round_is_its_negative(flags: list[tuple[bool, bool, bool]]) -> None:
    ours, theirs = [float(a + b) for a, b, _ in flags], [float(c) for _, _, c in flags]
    one, other = found(ours, theirs), found(theirs, ours)
    assert one.value == pytest.approx(-other.value)
    if one.low is not None:
        assert other.high is not None
        assert one.low == pytest.approx(-other.high)
    assert one.p == other.p


def test_pairs_are_the_tries_that_both_have() -> None:
    rng = np.random.default_rng(6)
    ours, theirs = layout([1] * 12, 2)(rng.random(24), False), layout([1] * 12, 2)(rng.random(24), False)
    kept = [unit for unit in theirs.units if unit not in ((0, 0), (3, 1), (5, 0), (5, 1))]
    result = compare(ours, theirs.of(kept[::-1]))
    assert result is not None
    assert (result.n, result.tries, result.clusters) == (11, 20, 11)
    same = compare(ours.of(kept), theirs.of(kept))
    assert result == same
    assert result.candidate == pytest.approx(np.mean(ours.of(kept).tops))


def test_candidates_without_a_common_try_have_no_difference() -> None:
    ours = plain([1.0] * 8)
    assert compare(ours.of(ours.units[:4]), ours.of(ours.units[4:])) is None


def test_fewer_than_six_clusters_are_too_few_rows() -> None:
    result = found([1.0] * 5, [0.0] * 5, share=True)
    assert (result.value, result.finding) == (1.0, Finding.TOO_FEW_ROWS)
    assert result.low is result.high is result.p is result.smallest is None


def test_amounts_that_all_differ_alike_are_too_few_rows() -> None:
    assert found([7.0] * 9, [5.0] * 9).finding is Finding.TOO_FEW_ROWS


def test_shares_without_a_difference_still_have_an_interval() -> None:
    result = found([1.0] * 30, [1.0] * 30, share=True)
    assert result.finding is Finding.NOT_SHOWN
    assert result.low is not None
    assert result.low < -0.05
    assert result.p == 1.0


def test_the_smallest_difference_is_shown_in_four_runs_of_five() -> None:
    rng, shown = np.random.default_rng(7), 0
    noise = rng.normal(0, 1, (400, 40))
    expected = (stats.t.ppf(0.975, 39) + stats.t.ppf(0.8, 39)) / np.sqrt(40)
    for each in noise + expected:
        result = found(list(each), [0.0] * 40)
        assert result.smallest is not None
        shown += result.finding is Finding.HIGHER
    assert 0.74 < shown / 400 < 0.86


def test_a_ratios_difference_is_that_of_the_two_ratios() -> None:
    rng = np.random.default_rng(8)
    calls, failed = rng.integers(1, 6, (2, 40)).astype(float), rng.integers(0, 2, (2, 40)).astype(float)
    units, names = tuple((row, 0) for row in range(40)), tuple(map(str, range(40)))
    ours, theirs = (Sample(units, names, failed[i], calls[i], True) for i in range(2))
    result = compare(ours, theirs)
    assert result is not None
    assert result.value == pytest.approx(failed[0].sum() / calls[0].sum() - failed[1].sum() / calls[1].sum())
    # The delta method, by the sum over rows of what each adds.
    adds = (failed[0] - ours.mean * calls[0]) / calls[0].sum() - (failed[1] - theirs.mean * calls[1]) / calls[
        1
    ].sum()
    assert result.low is not None
    assert result.high is not None
    assert (result.high - result.low) / 2 == pytest.approx(2.02 * np.sqrt((adds**2).sum()), rel=0.05)
