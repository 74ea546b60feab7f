"""Simulated samples whose true mean is known, for coverage tests of intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

from headway_analysis.statistics.differences import compare
from headway_analysis.statistics.estimates import Estimate, Sample, estimate

Floats = npt.NDArray[np.float64]
SETS = 2000


def layout(sizes: Sequence[int], tries: int = 1) -> Callable[[Floats, bool], Sample]:
    """Return a function from values to a sample: clusters of `sizes` rows, `tries` tries a row."""
    clusters = [cluster for cluster, rows in enumerate(sizes) for _ in range(rows)]
    units = tuple((row, index) for row in range(len(clusters)) for index in range(tries))
    names = tuple(str(cluster) for cluster in clusters for _ in range(tries))
    return lambda values, share: Sample(units, names, values, np.ones(len(units)), share)


def chances(
    rng: np.random.Generator, mean: float, correlation: float, sizes: Sequence[int], tries: int
) -> Floats:
    """Draw each value's chance to be 1, by cluster: values in a cluster have this correlation."""
    if correlation == 0:
        return np.full((SETS, sum(sizes) * tries), mean)
    spread = (1 - correlation) / correlation
    drawn = rng.beta(mean * spread, (1 - mean) * spread, (SETS, len(sizes)))
    return np.repeat(drawn, np.array(sizes) * tries, axis=1)


def linked_chances(
    rng: np.random.Generator, means: tuple[float, float], correlation: float, rows: int, tries: int
) -> tuple[Floats, Floats]:
    """Draw the chances of two candidates. On 7 rows of 10 both meet the same difficulty."""
    spread = (1 - correlation) / correlation
    shared, own = rng.random((2, SETS, rows))
    second = np.where(rng.random((SETS, rows)) < 0.7, shared, own)
    found = []
    for mean, difficulty in zip(means, (shared, second), strict=True):
        chance = (
            beta.ppf(difficulty, mean * spread, (1 - mean) * spread) if mean < 1 else np.ones(shared.shape)
        )
        found.append(np.repeat(chance, tries, axis=1))
    return found[0], found[1]


def flips(rng: np.random.Generator, chance: Floats) -> Floats:
    """Draw 0 or 1 by each chance."""
    return (rng.random(chance.shape) < chance).astype(float)


def estimates(
    make: Callable[[Floats, bool], Sample], values: Floats, share: bool
) -> Iterator[Estimate | None]:
    for each in values:
        yield estimate(make(each, share))


def coverage(make: Callable[[Floats, bool], Sample], values: Floats, truth: float, *, share: bool) -> float:
    """Return the share of intervals that hold the truth."""
    held = 0
    for found in estimates(make, values, share):
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= truth <= found.high
    return held / len(values)


def held_by_pairs(
    make: Callable[[Floats, bool], Sample], ours: Floats, theirs: Floats, truth: float, *, share: bool
) -> float:
    """Return the share of intervals of paired differences that hold the truth."""
    held = 0
    for one, other in zip(ours, theirs, strict=True):
        found = compare(make(one, share), make(other, share))
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= truth <= found.high
    return held / len(ours)
