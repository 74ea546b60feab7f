"""Two candidates on the same tries: the paired difference, its interval and its p value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from scipy.special import stdtrit

from headway_analysis.statistics.clusters import Codes, Floats, Spread, clustered, settled, sums, within
from headway_analysis.statistics.estimates import Sample
from headway_analysis.statistics.floors import SHARE, least_mean

ALPHA = 0.05
POWER = 0.8
RESAMPLES = 9999
"""Random sign flips from which a p value is estimated."""
CHUNK = 1000
"""Sign flips that are drawn in one array."""
SEED = 20241101
ENOUGH = 6
"""With fewer clusters, no sign-flip test reaches p < 0.05: the best of five is 2 / 2^5 = 0.0625."""


class Finding(StrEnum):
    """The verdict of a comparison."""

    HIGHER = "Higher"
    """The candidate's value is above the baseline's: the difference's whole interval is above 0."""
    LOWER = "Lower"
    NOT_SHOWN = "NotShown"
    """The interval contains 0."""
    TOO_FEW_ROWS = "TooFewRows"
    """Fewer than six clusters in common, or no interval: no verdict is possible."""


@dataclass(frozen=True)
class Difference:
    """Candidate minus baseline, over the tries that both have."""

    value: float
    low: float | None
    """Lower bound of the 95 % interval; None if there is none."""
    high: float | None
    p: float | None
    """Two-sided p value of a sign-flip permutation test over clusters."""
    p_holm: float | None
    """`p`, corrected for how many candidates are compared."""
    smallest: float | None
    """The smallest difference that these rows show with power 0.8 at alpha 0.05."""
    candidate: float
    """The candidate's value over the common tries."""
    baseline: float
    n: int
    """Rows in common."""
    clusters: int
    tries: int
    """Pairs of values: one for each row and try that both have."""
    finding: Finding


@dataclass(frozen=True)
class _Pairs:
    """What each cluster adds to the difference."""

    value: float
    shares: Floats
    """Each cluster's share of the difference. Swapping the two candidates changes every sign."""
    residuals: Floats
    """For each cluster, in units of `weights`: its share of the difference, minus the share that its weight
    predicts."""
    weights: Floats
    correlation: float


def compare(candidate: Sample, baseline: Sample) -> Difference | None:
    """The paired difference of two samples of one measure; None if no unit has a value in both.

    Values are paired by row and try. The interval is Student's with the cluster-robust error of the paired
    differences. That error is too small if most clusters have the same difference, which is mostly 0. So two
    made-up clusters are added, as Bonett and Price (2012) do for paired proportions: one with a positive and
    one with a negative difference. Their weight is the share of clusters with the same difference.
    """
    common = sorted(set(candidate.units) & set(baseline.units))
    ours, theirs = candidate.of(common), baseline.of(common)
    if not common or not min(ours.bottoms.sum(), theirs.bottoms.sum()) > 0:
        return None
    codes = ours.codes
    pairs = _pairs(ours, theirs, codes)
    centre, spread = _spread(pairs, ours, theirs)
    enough = spread is not None and len(pairs.weights) >= ENOUGH
    low, high = _ends(centre, spread, ours.share and theirs.share) if spread and enough else (None, None)
    return Difference(
        value=pairs.value,
        low=low,
        high=high,
        p=sign_flip(pairs.shares) if enough else None,
        p_holm=None,
        smallest=_smallest(spread) if spread and enough else None,
        candidate=ours.mean,
        baseline=theirs.mean,
        n=ours.rows,
        clusters=len(pairs.weights),
        tries=len(common),
        finding=_finding(low, high),
    )


def least_gain(
    candidate: Sample, baseline: Sample, sign: int = 1, ends: tuple[float, float] | None = SHARE
) -> float | None:
    """A lower bound of the candidate's lead. It allows for clusters that the sample lacks: see `floors`.

    Args:
        sign: 1 if more is better, -1 if less is.
        ends: lowest and highest possible value; None if nothing bounds the values.

    Returns:
        None if nothing bounds the values, or no unit has a value in both.
    """
    common = sorted(set(candidate.units) & set(baseline.units))
    ours, theirs = candidate.of(common), baseline.of(common)
    if ends is None or not common or not min(ours.bottoms.sum(), theirs.bottoms.sum()) > 0:
        return None
    pairs = _pairs(ours, theirs, ours.codes)
    some = pairs.weights > 0
    gains = sign * (pairs.value + pairs.residuals[some] / pairs.weights[some])
    return least_mean(gains, pairs.weights[some], min(ends[0] - ends[1], float(gains.min())))


def _pairs(ours: Sample, theirs: Sample, codes: Codes) -> _Pairs:
    """The difference of two means, split by cluster.

    For plain means a cluster's share is the sum of its differences over the number of pairs. For ratios the
    share is linearised about the ratio of both candidates together.
    """
    a, b = ours.bottoms.sum(), theirs.bottoms.sum()
    pooled = (ours.tops.sum() + theirs.tops.sum()) / (a + b)
    each = (ours.tops - pooled * ours.bottoms) / a - (theirs.tops - pooled * theirs.bottoms) / b
    own = (ours.tops - ours.mean * ours.bottoms) / a - (theirs.tops - theirs.mean * theirs.bottoms) / b
    weights = sums(codes, ours.bottoms / a + theirs.bottoms / b) / 2
    scale = float(np.abs(ours.tops).max() / a + np.abs(theirs.tops).max() / b)
    return _Pairs(
        ours.mean - theirs.mean,
        settled(sums(codes, each), scale),
        settled(sums(codes, own), scale),
        weights,
        within(each, codes),
    )


def _spread(pairs: _Pairs, ours: Sample, theirs: Sample) -> tuple[float, Spread | None]:
    """The interval's centre and spread. No spread if nothing shows or bounds how clusters differ."""
    plain = bool((ours.bottoms == 1).all() and (theirs.bottoms == 1).all())
    share = ours.share and theirs.share
    differ = bool(pairs.residuals.any())
    if len(pairs.weights) < 2 or not (differ or share):
        return pairs.value, None
    # Ratios of clusters are seldom exactly alike, so those that differ show the spread.
    alike = _alike(pairs) if plain or not differ else 0.0
    if alike == 0:
        return pairs.value, clustered(pairs.residuals, pairs.weights, pairs.correlation)
    return _with_two_more(pairs, alike, alike if share else 0.0)


def _alike(pairs: _Pairs) -> float:
    """Share of clusters that have the commonest difference, not counting one of them; 0 if no two agree."""
    means = pairs.shares / pairs.weights
    largest = np.abs(means).max()
    commonest = np.unique(np.round(means / largest if largest else means, 9), return_counts=True)[1].max()
    return float((commonest - 1) / (len(means) - 1))


def _with_two_more(pairs: _Pairs, weight: float, prior: float) -> tuple[float, Spread]:
    """Adds two clusters with the differences +size and -size. Each counts `weight` times a typical cluster.

    The size is the root mean square of all differences that are not 0. The mean includes `prior` further
    clusters with the difference 1, the largest that shares can have. So the size is 1 if no cluster differs.
    """
    typical = pairs.weights.sum() / len(pairs.weights)
    differ = pairs.shares[pairs.shares != 0] / typical
    size = float(np.sqrt(((differ**2).sum() + prior) / (len(differ) + prior)))
    weights = np.append(pairs.weights, [weight * typical] * 2)
    centre = float(pairs.value * pairs.weights.sum() / weights.sum())
    own = pairs.residuals + (pairs.value - centre) * pairs.weights
    made_up = np.sqrt(weight) * typical * (np.array([size, -size]) - centre)
    return centre, clustered(np.append(own, made_up), weights, pairs.correlation)


def _ends(centre: float, spread: Spread, share: bool) -> tuple[float, float]:
    half = spread.quantile * spread.error
    low, high = float(centre - half), float(centre + half)
    return (max(-1.0, low), min(1.0, high)) if share else (low, high)


def _smallest(spread: Spread) -> float:
    """The smallest difference shown with power 0.8 at alpha 0.05, by the sum of the two quantiles."""
    return float(spread.quantile + stdtrit(spread.df, POWER)) * spread.error


def _finding(low: float | None, high: float | None) -> Finding:
    if low is None or high is None:
        return Finding.TOO_FEW_ROWS
    if low > 0:
        return Finding.HIGHER
    return Finding.LOWER if high < 0 else Finding.NOT_SHOWN


def sign_flip(shares: Floats) -> float:
    """Two-sided p value of the sum of `shares`, each of which could as well have had the other sign.

    The value is exact for up to 13 clusters that differ. For more it comes from `RESAMPLES` random flips with
    a fixed seed, and the observed signs count as one more flip.
    """
    differ = shares[shares != 0]
    if len(differ) < 2:
        return 1.0
    if 2 ** len(differ) > RESAMPLES:
        return _drawn(differ)
    from scipy.stats import permutation_test  # takes most of a second; no training job needs it

    found = permutation_test((differ,), np.sum, permutation_type="samples", n_resamples=RESAMPLES)
    return float(found.pvalue)


def _drawn(differ: Floats) -> float:
    """The p value from `RESAMPLES` drawn flips. scipy's draws take seconds for hundreds of clusters."""
    rng, drawn, reached = np.random.default_rng(SEED), 0, 0
    observed = abs(differ.sum()) - 1e-12 * np.abs(differ).sum()
    while drawn < RESAMPLES:
        count = min(CHUNK, RESAMPLES - drawn)
        signs = rng.integers(0, 2, (count, len(differ)), dtype=np.int8).astype(np.float64)
        reached += int((np.abs(2 * (signs @ differ) - differ.sum()) >= observed).sum())
        drawn += count
    return (1 + reached) / (1 + RESAMPLES)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down correction (1979): p values that keep the chance of any false finding at alpha."""
    corrected = [0.0] * len(ps)
    least = 0.0
    for rank, at in enumerate(sorted(range(len(ps)), key=lambda at: ps[at])):
        least = max(least, min(1.0, (len(ps) - rank) * ps[at]))
        corrected[at] = least
    return corrected


def corrected(found: Sequence[Difference]) -> list[Difference]:
    """The differences of several candidates from one baseline, with p values by Holm's correction."""
    tested = [at for at, difference in enumerate(found) if difference.p is not None]
    ps = holm([p for difference in found if (p := difference.p) is not None])
    by_place = dict(zip(tested, ps, strict=True))
    return [replace(difference, p_holm=by_place.get(at)) for at, difference in enumerate(found)]
