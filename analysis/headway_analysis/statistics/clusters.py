"""The variance of a mean whose values come in clusters, and its degrees of freedom.

The bias-reduced estimator of Bell and McCaffrey (CR2) for a regression on a constant, weighted by counts. Its
degrees of freedom follow Satterthwaite, under the correlation in clusters that the sample itself shows, as in
Imbens and Kolesár (2016). For clusters of equal size both are exact. The variance is that of the clusters'
means, and the degrees of freedom are one less than the number of clusters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.intp]

TAIL = 0.025
"""Probability outside each end of a 95 % interval."""
ROUNDING = 1e-12
"""The relative size below which a difference is only rounding."""


@dataclass(frozen=True)
class Spread:
    """How certain a mean is."""

    variance: float
    """The variance of the mean."""
    df: float
    """Degrees of freedom of the variance."""

    @property
    def error(self) -> float:
        """Standard error."""
        return float(np.sqrt(self.variance))

    @property
    def quantile(self) -> float:
        """Student's quantile of a 95 % interval."""
        return float(stdtrit(self.df, 1 - TAIL))


def clustered(residuals: Floats, weights: Floats, correlation: float) -> Spread:
    """The spread of a weighted mean.

    Args:
        residuals: for each cluster, the sum of value minus mean over its values.
        weights: for each cluster, how many values it has.
        correlation: of values in a cluster, 0 to 1; it changes only the degrees of freedom.
    """
    total = weights.sum()
    leverage = np.minimum(weights / total, 1 - 1e-9)
    scale = 1 / (np.sqrt(1 - leverage) * total)
    variance = float(((residuals * scale) ** 2).sum())
    return Spread(variance, _freedom(weights, leverage, scale, correlation))


def _freedom(weights: Floats, leverage: Floats, scale: Floats, correlation: float) -> float:
    """(tr M)^2 / tr M^2, for the matrix M of which the variance is the quadratic form.

    The clusters' variances are s, and S is their sum. With `p = scale * s` and `q = scale * leverage`,
    `M = diag(scale^2 s) - pq' - qp' + S qq'`. Its traces follow without making the matrix.
    """
    s = weights * (1 - correlation) + correlation * weights**2
    p, q, whole = scale * s, scale * leverage, s.sum()
    diagonal = scale**2 * s
    trace = (diagonal - 2 * p * q + whole * q**2).sum()
    pp, pq, qq = p @ p, p @ q, q @ q
    rank2 = 2 * (pp * qq + pq**2) - 4 * whole * pq * qq + whole**2 * qq**2
    square = diagonal @ diagonal + 2 * (diagonal * (whole * q**2 - 2 * p * q)).sum() + rank2
    return float(max(trace**2 / square, 1.0))


def settled(values: Floats, scale: float) -> Floats:
    """The values, with 0 for each that is only rounding error relative to `scale`."""
    return np.where(np.abs(values) < ROUNDING * scale, 0.0, values)


def sums(codes: Codes, values: Floats) -> Floats:
    """The sum of each cluster's values."""
    return np.asarray(np.bincount(codes, values), dtype=np.float64)


def within(values: Floats, codes: Codes) -> float:
    """Correlation of the values of a cluster: the estimate from analysis of variance, clipped to 0..1."""
    sizes = np.bincount(codes).astype(float)
    count, clusters = len(values), len(sizes)
    if count == clusters or clusters < 2:
        return 0.0
    means = np.bincount(codes, values) / sizes
    inside = ((values - means[codes]) ** 2).sum() / (count - clusters)
    between = (sizes * (means - values.mean()) ** 2).sum() / (clusters - 1)
    typical = (count - (sizes**2).sum() / count) / (clusters - 1)
    spread = between + (typical - 1) * inside
    return float(np.clip((between - inside) / spread, 0.0, 1.0)) if spread > 0 else 0.0
