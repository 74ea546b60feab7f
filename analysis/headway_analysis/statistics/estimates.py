"""A sample in clusters, and its mean with a 95 % interval."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
from scipy.special import betaincinv, ndtri

from headway_analysis.statistics.clusters import TAIL, Codes, Floats, Spread, clustered, settled, sums, within

NORMAL = float(ndtri(1 - TAIL))
"""Normal quantile of a 95 % interval."""
PRIOR = 2.0
"""Weight of the worst design effect against the sample's own; see `_effective`."""

Unit = tuple[int, int]
"""Row and try; the try is -1 if the value belongs to the whole row."""


class Why(StrEnum):
    """Why an estimate has no interval."""

    TOO_FEW_CLUSTERS = "TooFewClusters"
    """Fewer than two clusters: nothing shows how they differ."""
    NO_SPREAD = "NoSpread"
    """All values are the same, and nothing bounds what another row would give."""
    TOTAL = "Total"
    """A sum over the run, not an estimate."""


@dataclass(frozen=True)
class Sample:
    """Values of one measure, in clusters. Their mean is the sum of `tops` over the sum of `bottoms`."""

    units: tuple[Unit, ...]
    """The row and try of each value; no two are the same."""
    clusters: tuple[str, ...]
    """The cluster of each value: its row, or the row's value in `clusterColumn`."""
    tops: Floats
    bottoms: Floats
    """1 for a plain mean. For a rate of calls: the calls of the try."""
    share: bool = False
    """Every value lies between 0 and 1."""

    @cached_property
    def codes(self) -> Codes:
        """The number of each value's cluster, counted from 0."""
        numbers = {name: number for number, name in enumerate(dict.fromkeys(self.clusters))}
        return np.fromiter(map(numbers.__getitem__, self.clusters), np.intp, len(self.clusters))

    @property
    def mean(self) -> float:
        """The measure's value: the sum of `tops` over the sum of `bottoms`."""
        return float(self.tops.sum() / self.bottoms.sum())

    @property
    def rows(self) -> int:
        """How many rows have a value."""
        return len({row for row, _ in self.units})

    @property
    def binary(self) -> bool:
        """Whether every value is 0 or 1."""
        return bool(((self.tops == 0) | (self.tops == 1)).all() and (self.bottoms == 1).all())

    def of(self, units: Sequence[Unit]) -> Sample:
        """The values of some units, in the order of `units`."""
        place = {unit: at for at, unit in enumerate(self.units)}
        kept = [place[unit] for unit in units]
        names = tuple(self.clusters[at] for at in kept)
        return Sample(tuple(units), names, self.tops[kept], self.bottoms[kept], self.share)


@dataclass(frozen=True)
class Estimate:
    """A measure's value, and how certain it is."""

    value: float
    low: float | None
    """Lower bound of the 95 % interval; None if `why` says that there is none."""
    high: float | None
    n: int
    """Rows that have a value."""
    clusters: int
    """Independent clusters among them: rows, or values of `clusterColumn`."""
    tries: int
    """Number of values: one a try, or one a row for measures such as pass@k."""
    method: str
    """How the interval was made: `wilson`, `wilson-clustered`, `t-clustered` or `none`."""
    floor: float | None = None
    """The lower bound for gates: `low`, or Clopper and Pearson's bound for a share. Wilson's bound is too
    often above a true value near 0. A gate's `minimum` is compared with `floor`, or with the bound of the
    module `floors` if that is lower."""
    why: Why | None = None


@dataclass(frozen=True)
class _Interval:
    low: float
    high: float
    floor: float
    method: str


def estimate(sample: Sample) -> Estimate | None:
    """The mean of a sample with its interval; None without a value.

    A share (values in 0..1) gets Wilson's interval: the plain one if every cluster has one value and each
    value is 0 or 1. Otherwise the interval uses the effective number of values (Korn and Graubard 1998;
    Franco, Little, Louis and Slud 2019). Anything else gets Student's interval with the cluster-robust error
    of `clusters.clustered`.
    """
    if not sample.units or not sample.bottoms.sum() > 0:
        return None
    codes, mean = sample.codes, sample.mean
    weights = sums(codes, sample.bottoms)
    clusters = int((weights > 0).sum())
    found = _interval(sample, codes, weights) if clusters > 1 else Why.TOO_FEW_CLUSTERS
    counts = (sample.rows, clusters, len(sample.units))
    if isinstance(found, Why):
        return Estimate(mean, None, None, *counts, method="none", why=found)
    return Estimate(mean, found.low, found.high, *counts, method=found.method, floor=found.floor)


def of_rows(tries: Iterable[Sequence[float]]) -> Estimate | None:
    """The mean over rows that are independent of each other, with its interval; None without a value.

    Args:
        tries: the scores of each row's tries. If all are between 0 and 1, they are treated as shares.
    """
    values = [(row, number, value) for row, all_of in enumerate(tries) for number, value in enumerate(all_of)]
    sample = Sample(
        tuple((row, number) for row, number, _ in values),
        tuple(str(row) for row, _, _ in values),
        np.array([value for _, _, value in values], dtype=np.float64),
        np.ones(len(values)),
        share=all(0 <= value <= 1 for _, _, value in values),
    )
    return estimate(sample)


def total(value: float, sample: Sample) -> Estimate:
    """A sum over the run: it has no interval."""
    clusters = len(set(sample.clusters))
    return Estimate(value, None, None, sample.rows, clusters, len(sample.units), "none", why=Why.TOTAL)


def _interval(sample: Sample, codes: Codes, weights: Floats) -> _Interval | Why:
    mean = sample.mean
    scale = float(np.abs(sample.tops).max() + abs(mean) * sample.bottoms.max())
    residuals = settled(sums(codes, sample.tops - mean * sample.bottoms), scale)
    spread = clustered(residuals, weights, correlation(sample, codes))
    if not sample.share:
        return _student(mean, spread) if residuals.any() else Why.NO_SPREAD
    if sample.binary and len(weights) == len(sample.units):
        return _wilson(mean, len(weights), NORMAL, "wilson")
    if mean in (0.0, 1.0):  # nothing shows how tries of a cluster agree: suppose that they always do
        return _wilson(mean, weights.sum() ** 2 / (weights @ weights), NORMAL, "wilson-clustered")
    if not residuals.any() and not sample.binary:
        return Why.NO_SPREAD
    return _wilson(mean, _effective(sample, codes, weights, spread), spread.quantile, "wilson-clustered")


def correlation(sample: Sample, codes: Codes) -> float:
    """Correlation of the values in a cluster."""
    some = sample.bottoms > 0
    values = sample.tops[some] / sample.bottoms[some]
    return within(values, codes if some.all() else np.unique(codes[some], return_inverse=True)[1])


def _effective(sample: Sample, codes: Codes, weights: Floats, spread: Spread) -> float:
    """How many independent 0s and 1s would be as certain as this share.

    The design effect is the variance divided by the variance of independent values. With few clusters that
    differ, the sample mostly shows too small an effect. So the estimate moves towards the worst effect: all
    values of a cluster alike. The worst effect has the weight PRIOR. The sample's own effect has as its
    weight the square of the number of clusters with the rarer value. For 0s and 1s the effect is at least 1,
    as for independent tries.
    """
    mean, count = sample.mean, weights.sum()
    tops = sums(codes, sample.tops)
    telling = min((tops > 0).sum(), (tops < weights).sum())
    effect = max(spread.variance * count / (mean * (1 - mean)), float(sample.binary))
    worst = (weights @ weights) / count
    return float(count * (telling**2 + PRIOR) / (telling**2 * effect + PRIOR * worst))


def _student(mean: float, spread: Spread) -> _Interval:
    half = spread.quantile * spread.error
    return _Interval(mean - half, mean + half, mean - half, "t-clustered")


def _wilson(share: float, count: float, quantile: float, method: str) -> _Interval:
    """Wilson's score interval (1927), with Clopper and Pearson's lower bound (1934) as its floor.

    If Student's quantile is above the normal one, the floor is computed as if there were fewer values, as
    Korn and Graubard do.
    """
    squared = quantile**2 / count
    centre = (share + squared / 2) / (1 + squared)
    half = quantile * np.sqrt(share * (1 - share) / count + squared / (4 * count)) / (1 + squared)
    low, high = max(0.0, float(centre - half)), min(1.0, float(centre + half))
    fewer = count * (NORMAL / quantile) ** 2
    hits = share * fewer
    floor = float(betaincinv(hits, fewer - hits + 1, TAIL)) if hits > 0 else 0.0
    return _Interval(low if share > 0 else 0.0, high if share < 1 else 1.0, floor, method)
