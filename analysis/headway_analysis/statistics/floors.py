"""A lower bound on the mean of clusters of bounded values, whatever clusters the sample lacks.

An interval takes its width from the sample. If one cluster in thirty fails, a third of all samples of thirty
clusters contain no failing one, and their intervals are too short. Gaffke's bound (2005; Learned-Miller and
Thomas 2019, arXiv 1905.06208) supposes one further cluster of the worst value. It gives all clusters random
weights of sum 1, by Dirichlet's distribution. For 0s and 1s the bound is Clopper and Pearson's lower bound.
No case is known in which the bound is above the true mean too often, but there is no proof.

The further cluster is as large as the largest of the sample. With clusters of different sizes, the mean is at
least m if the mean of size * (value - m) is at least 0. The lowest possible value of that product belongs to
the largest cluster.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq

from headway_analysis.statistics.clusters import TAIL, Floats, sums
from headway_analysis.statistics.estimates import Sample

STEP = 0.05
"""The integral's step, in the logarithm of the frequency."""
FREQUENCIES = np.exp(np.arange(-18.0, 14.0, STEP))
"""Frequencies of the integral, for coefficients whose squares add up to 1."""
FAR = 6.5
"""Standard deviations from the mean, beyond which less than TAIL lies (Cantelli's inequality)."""
EXACT = 1e-7
"""Precision of the bound, relative to the distance between best and worst value."""
SHARE = (0.0, 1.0)
"""Lowest and highest value of a share."""
STEPS = 2048
"""If there are more values than this, they are rounded down to this many levels. That limits the time, and
never raises the bound."""


def least_mean(values: Floats, weights: Floats, worst: float) -> float:
    """The lower bound of a one-sided 97.5 % interval of a weighted mean.

    Args:
        values: mean of each cluster, `worst` or above.
        weights: how much each cluster counts; 0 leaves it out.
        worst: the lowest value that a cluster could have.
    """
    some = weights > 0
    values, weights = values[some], weights[some]
    highest = float(values.max())
    if highest <= worst:
        return worst
    if len(values) > STEPS:
        step = (highest - worst) / STEPS
        values = worst + np.floor((values - worst) / step) * step
    pairs, which = np.unique(values + 1j * weights, return_counts=True)
    points, sizes = np.append(pairs.real, worst), np.append(pairs.imag, weights.max())
    counts = np.append(which, 1).astype(float)

    def short(mean: float) -> float:
        return _below_zero(sizes * (points - mean), counts) - TAIL

    span = highest - worst
    return float(brentq(short, worst + 1e-9 * span, highest - 1e-9 * span, xtol=EXACT * span))


def least_value(sample: Sample, ends: tuple[float, float] | None = SHARE) -> float | None:
    """`least_mean` of the means of a sample's clusters; None if nothing bounds its values.

    Args:
        ends: lowest and highest possible value.
    """
    if ends is None:
        return None
    weights = sums(sample.codes, sample.bottoms)
    some = weights > 0
    means = sums(sample.codes, sample.tops)[some] / weights[some]
    return least_mean(means, weights[some], min(ends[0], float(means.min())))


def _below_zero(coefficients: Floats, counts: Floats) -> float:
    """Chance that a sum of exponential variables, each times its coefficient, is below 0 (Imhof 1961).

    Dirichlet's weights are such variables divided by their sum. Let the coefficients be the distances of
    values from a bound: then this is the chance that the values' weighted mean is below the bound.
    """
    scaled = coefficients / np.sqrt((counts * coefficients**2).sum())
    centre = float(counts @ scaled)
    if abs(centre) > FAR:  # the integral would need shorter steps, and the result is clear
        return float(centre < 0)
    each = np.outer(FREQUENCIES, scaled)
    height, phase = np.exp(-0.5 * (np.log1p(each * each) @ counts)), np.arctan(each) @ counts
    return float(0.5 - STEP / np.pi * (height * np.sin(phase)).sum())
