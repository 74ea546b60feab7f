"""The statistics of the checks, compared with other implementations and exact sums."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from headway_analysis.preflight import shares
from headway_analysis.preflight.checks.foothold import ALWAYS, NEARLY_ALWAYS, NEVER, RARELY

VALUES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=30)


@given(st.integers(0, 60), st.integers(1, 60))
def test_an_interval_is_clopper_and_pearsons(hits: int, more: int) -> None:
    total = hits + more
    expected = stats.binomtest(hits, total).proportion_ci(0.95, method="exact")
    found = shares.share(hits, total)
    assert (found.low, found.high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_a_share_of_no_trials_has_the_widest_interval() -> None:
    assert shares.share(0, 0) == shares.Share(0.0, 0.0, 1.0, 0, 0)


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.1, 0.2])
def test_enough_without_a_hit_is_the_fewest_trials_needed(rate: float) -> None:
    enough = shares.enough_without(rate)
    assert (1 - rate) ** enough <= 0.05 < (1 - rate) ** (enough - 1)


@pytest.mark.parametrize("rate", [0.5, 0.6, 0.9])
def test_enough_with_is_the_fewest_trials_that_are_all_hits(rate: float) -> None:
    enough = shares.enough_with(rate)
    assert shares.share(enough, enough).low > rate >= shares.share(enough - 1, enough - 1).low


@given(VALUES, st.randoms(use_true_random=False))
def test_a_rank_correlation_is_spearmans(first: list[float], drawn: object) -> None:
    second = list(first)
    drawn.shuffle(second)  # type: ignore[attr-defined]
    found = shares.rank_correlation(first, second)
    if len(set(first)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(stats.spearmanr(first, second).statistic)
        assert shares.ranks(first) == pytest.approx(stats.rankdata(first))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_a_quantile_is_one_of_the_values(values: list[float], part: float) -> None:
    expected = float(np.quantile(values, part, method="inverted_cdf"))
    assert shares.quantile(values, part) == pytest.approx(expected)


def reached(rate: float, evidence: Callable[[int, int], float], limit: int) -> float:
    """The exact chance that evidence becomes certain within `limit` trials, if tested after each trial."""
    chances, stopped = {0: 1.0}, 0.0
    for total in range(1, limit + 1):
        after: dict[int, float] = {}
        for hits, chance in chances.items():
            after[hits] = after.get(hits, 0.0) + chance * (1 - rate)
            after[hits + 1] = after.get(hits + 1, 0.0) + chance * rate
        stopped += sum(chance for hits, chance in after.items() if evidence(hits, total) >= shares.CERTAIN)
        chances = {hits: chance for hits, chance in after.items() if evidence(hits, total) < shares.CERTAIN}
    return stopped


def never(hits: int, total: int) -> float:
    return shares.evidence_below(hits, total, RARELY, NEVER)


def always(hits: int, total: int) -> float:
    return shares.evidence_above(hits, total, NEARLY_ALWAYS, ALWAYS)


@pytest.mark.parametrize("rate", [RARELY, 0.08, 0.2])
def test_repeated_looks_keep_the_error_rate_of_never(rate: float) -> None:
    assert reached(rate, never, 300) <= shares.ALPHA


@pytest.mark.parametrize("rate", [NEARLY_ALWAYS, 0.85, 0.6])
def test_repeated_looks_keep_the_error_rate_of_always(rate: float) -> None:
    assert reached(rate, always, 300) <= shares.ALPHA


def test_evidence_finds_a_true_hypothesis() -> None:
    assert reached(0.0, never, 59) == 1.0
    assert reached(0.99, always, 100) > 0.8


@settings(max_examples=50)
@given(st.integers(0, 40), st.integers(0, 40))
def test_evidence_is_a_ratio_of_likelihoods(hits: int, misses: int) -> None:
    total = hits + misses
    found = shares.evidence_above(hits, total, 0.9, [(0.97, 1.0)])
    expected = stats.binom.logpmf(hits, total, 0.97) - stats.binom.logpmf(hits, total, 0.9)
    assert math.log(found) == pytest.approx(float(expected), abs=1e-8)
