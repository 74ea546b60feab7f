"""The statistics of docs/evaluation.md in plain Python, for `recount_eval.py`. It uses none of Headway's
code."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import atan, exp, fsum, isclose, lgamma, log, log1p, pi, sin, sqrt
from typing import Any, NamedTuple

ENOUGH, EXACT, DRAWS, FLIPS, PRIOR = 6, 13, 2000, 9999, 2.0
NORMAL = 1.959963984540054
SHARES = {"success", "success_by_reward", "failed_tool_calls", "malformed_tool_calls", "turn_limit"}
SHARES |= {"token_limit", "agent_error", "infra_error"}
SCORES = {"reward", "external_score", "completion", "format"}


class Value(NamedTuple):
    """What a try or a row adds to a measure: its cluster, and its parts of the numerator and denominator."""

    cluster: str
    top: float
    bottom: float


Values = dict[tuple[int, int], Value]


def is_share(name: str, found: Iterable[Value]) -> bool:
    """Whether all values are in 0..1, by the measure's definition or in fact."""
    if name in SHARES or name.startswith("pass_"):
        return True
    bounded = all(0 <= value.top <= value.bottom for value in found)
    return bounded and (name in SCORES or name.startswith("metric_"))


# Distributions: the incomplete beta function's continued fraction (Lentz), and bisection.


def beta_cdf(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_cdf(b, a, 1 - x)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    found = d
    for m in range(1, 10_000):
        before = found
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / (1 + step * d), 1 + step / c
            found *= c * d
        if isclose(found, before, rel_tol=1e-15):
            break
    return front * found


def bisected(
    function: Callable[[float], float], wanted: float, low: float, high: float, halvings: int = 200
) -> float:
    """The argument at which an increasing function has the value `wanted`."""
    for _ in range(halvings):
        middle = (low + high) / 2
        if middle in (low, high):  # no number lies between them
            break
        low, high = (middle, high) if function(middle) < wanted else (low, middle)
    return (low + high) / 2


@cache
def student(df: float, p: float) -> float:
    """Quantile p > 0.5 of Student's distribution."""
    x = bisected(lambda x: -beta_cdf(df / 2, 0.5, x), -2 * (1 - p), 1.0, 0.0)
    return sqrt(df * (1 - x) / x)


# Intervals.


class Spread(NamedTuple):
    """Variance of a mean, and the degrees of freedom of this variance."""

    variance: float
    df: float


def by_cluster(names: Sequence[str], numbers: Sequence[float]) -> list[float]:
    """Sums of `numbers` by cluster, in the order in which the clusters first occur."""
    sums: dict[str, list[float]] = {}
    for name, number in zip(names, numbers, strict=True):
        sums.setdefault(name, []).append(number)
    return [fsum(each) for each in sums.values()]


def settled(numbers: Sequence[float], scale: float) -> list[float]:
    """The numbers, with 0 instead of those that are only rounding errors."""
    return [0.0 if abs(number) < 1e-12 * scale else number for number in numbers]


def correlation(names: Sequence[str], numbers: Sequence[float]) -> float:
    """Correlation of values within a cluster, estimated by analysis of variance."""
    groups: dict[str, list[float]] = {}
    for name, number in zip(names, numbers, strict=True):
        groups.setdefault(name, []).append(number)
    n, k = len(numbers), len(groups)
    if n == k or k < 2:
        return 0.0
    means, middle = {name: fsum(g) / len(g) for name, g in groups.items()}, fsum(numbers) / n
    inside = fsum((x - means[name]) ** 2 for name, g in groups.items() for x in g) / (n - k)
    between = fsum(len(g) * (means[name] - middle) ** 2 for name, g in groups.items()) / (k - 1)
    size = (n - sum(len(g) ** 2 for g in groups.values()) / n) / (k - 1)
    whole = between + (size - 1) * inside
    return min(1.0, max(0.0, (between - inside) / whole)) if whole > 0 else 0.0


def clustered(residuals: Sequence[float], weights: Sequence[float], rho: float) -> Spread:
    """CR2 variance of a weighted mean, with Satterthwaite's degrees of freedom under equal correlation."""
    total = fsum(weights)
    h = [min(w / total, 1 - 1e-9) for w in weights]
    scale = [1 / (sqrt(1 - leverage) * total) for leverage in h]
    variance = fsum((r * s) ** 2 for r, s in zip(residuals, scale, strict=True))
    v = [w * (1 - rho) + rho * w * w for w in weights]
    a = [s * each for s, each in zip(scale, v, strict=True)]
    b = [s * each for s, each in zip(scale, h, strict=True)]
    d, whole = [s * s * each for s, each in zip(scale, v, strict=True)], fsum(v)
    # Compute the trace of the matrix diag(d) - ab' - ba' + whole * bb', and the trace of its square.
    trace = fsum(d) - 2 * dot(a, b) + whole * dot(b, b)
    aa, ab, bb = dot(a, a), dot(a, b), dot(b, b)
    low_rank = 2 * (aa * bb + ab**2) - 4 * whole * ab * bb + (whole * bb) ** 2
    mixed = fsum(x * (whole * q * q - 2 * p * q) for x, p, q in zip(d, a, b, strict=True))
    return Spread(variance, max(1.0, trace**2 / (dot(d, d) + 2 * mixed + low_rank)))


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return fsum(x * y for x, y in zip(a, b, strict=True))


@cache
def wilson(share: float, n: float, z: float) -> tuple[float, float, float]:
    """Both ends of Wilson's interval, and the lower end of Clopper and Pearson's."""
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    fewer = n * (NORMAL / z) ** 2
    hits = share * fewer
    floor = bisected(lambda x: beta_cdf(hits, fewer - hits + 1, x), 0.025, 0.0, 1.0) if hits > 0 else 0.0
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return (0.0 if share <= 0 else low), (1.0 if share >= 1 else high), floor


def estimate(name: str, found: Values) -> dict[str, Any] | None:
    """The estimate of one candidate's measure, with the fields of the report; None if there is none."""
    units = sorted(found)
    each = [found[unit] for unit in units]
    below = fsum(value.bottom for value in each)
    if below <= 0:
        return None
    names = [value.cluster for value in each]
    tops, bottoms = [value.top for value in each], [value.bottom for value in each]
    mean = fsum(tops) / below
    weights = by_cluster(names, bottoms)
    result = {
        "value": mean,
        "rows": len({row for row, _ in units}),
        "clusters": sum(w > 0 for w in weights),
        "tries": len(units),
    }
    ends = interval(name, each, names, tops, bottoms, mean, weights)
    if isinstance(ends, str):
        return result | {"low": None, "high": None, "floor": None, "method": "none", "why": ends}
    method, low, high, floor = ends
    return result | {"low": low, "high": high, "floor": floor, "method": method, "why": None}


def interval(
    name: str,
    each: Sequence[Value],
    names: Sequence[str],
    tops: Sequence[float],
    bottoms: Sequence[float],
    mean: float,
    weights: Sequence[float],
) -> str | tuple[str, float, float, float]:
    """The method, both ends and the floor of an interval, or the reason why there is none."""
    if sum(w > 0 for w in weights) < 2:
        return "TooFewClusters"
    scale = max(map(abs, tops)) + abs(mean) * max(bottoms)
    residuals = settled(by_cluster(names, [t - mean * b for t, b in zip(tops, bottoms, strict=True)]), scale)
    some = [(c, t / b) for c, t, b in zip(names, tops, bottoms, strict=True) if b > 0]
    spread = clustered(residuals, weights, correlation([c for c, _ in some], [x for _, x in some]))
    if not is_share(name, each):
        half = student(spread.df, 0.975) * sqrt(spread.variance)
        return ("t-clustered", mean - half, mean + half, mean - half) if any(residuals) else "NoSpread"
    binary = all(t in (0, 1) for t in tops) and all(b == 1 for b in bottoms)
    if binary and len(weights) == len(each):
        return "wilson", *wilson(mean, len(weights), NORMAL)
    if mean in (0.0, 1.0):
        return "wilson-clustered", *wilson(mean, fsum(weights) ** 2 / dot(weights, weights), NORMAL)
    if not any(residuals) and not binary:
        return "NoSpread"
    count, sums = fsum(weights), by_cluster(names, tops)
    telling = min(sum(t > 0 for t in sums), sum(t < w for t, w in zip(sums, weights, strict=True)))
    effect = max(spread.variance * count / (mean * (1 - mean)), float(binary))
    worst = dot(weights, weights) / count
    n = count * (telling**2 + PRIOR) / (telling**2 * effect + PRIOR * worst)
    return "wilson-clustered", *wilson(mean, n, student(spread.df, 0.975))


# The lower bound for means of bounded values: Gaffke's bound, computed by Imhof's integral.


def least(means: Sequence[float], weights: Sequence[float], worst: float) -> float:
    """The 2.5 % quantile of the mean under random weights, with one added cluster.

    The added cluster has the worst value and the weight of the largest cluster.
    """
    points = Counter(zip(means, weights, strict=True))
    points[worst, max(weights)] += 1
    if max(means) <= worst:
        return worst

    def below(mean: float) -> float:
        return negative([(weight * (value - mean), count) for (value, weight), count in points.items()])

    return bisected(below, 0.025, worst, max(means), 40)


def negative(terms: Sequence[tuple[float, int]]) -> float:
    """Probability that a weighted sum of exponential variables is below 0. `terms`: (coefficient, count)."""
    size = sqrt(fsum(count * a * a for a, count in terms))
    terms = [(a / size, count) for a, count in terms if a]
    middle = fsum(count * a for a, count in terms)
    if abs(middle) > 6.5:
        return float(middle < 0)
    found, step = 0.0, 0.05
    for at in range(-400, 400):
        u = exp(at * step)
        height = -0.5 * fsum(count * log1p((u * a) ** 2) for a, count in terms)
        if height > -50:
            found += exp(height) * sin(fsum(count * atan(u * a) for a, count in terms))
    return 0.5 - step * found / pi


def least_value(found: Values, worst: float = 0.0) -> float:
    """The lower bound of the mean of one candidate's values, by cluster.

    `worst` is the lowest possible value. A lower mean of a cluster replaces it.
    """
    each = list(found.values())
    names = [value.cluster for value in each]
    tops, weights = (by_cluster(names, [getattr(v, of) for v in each]) for of in ("top", "bottom"))
    known = [(t / w, w) for t, w in zip(tops, weights, strict=True) if w > 0]
    means = [mean for mean, _ in known]
    return least(means, [weight for _, weight in known], min(worst, *means))


def least_gain(ours: Values, theirs: Values, sign: int, worst: float = -1.0) -> float:
    """The lower bound of a paired difference, by cluster. Ratios are linearised at the two means."""
    units = sorted(ours.keys() & theirs.keys())
    names = [ours[u].cluster for u in units]
    total = [fsum(side[u].bottom for u in units) for side in (ours, theirs)]
    mean = [fsum(side[u].top for u in units) / n for side, n in zip((ours, theirs), total, strict=True)]
    own = [_less(ours[u], mean[0]) / total[0] - _less(theirs[u], mean[1]) / total[1] for u in units]
    weights = by_cluster(
        names, [(ours[u].bottom / total[0] + theirs[u].bottom / total[1]) / 2 for u in units]
    )
    shifts = by_cluster(names, own)
    gains = [sign * (mean[0] - mean[1] + r / w) for r, w in zip(shifts, weights, strict=True) if w > 0]
    return least([round(g, 12) for g in gains], [w for w in weights if w > 0], min(worst, *gains))


# Paired differences.


def difference(name: str, ours: Values, theirs: Values) -> dict[str, Any] | None:
    """Candidate minus baseline over their common tries or rows. `p` is a pair of value and standard error."""
    units = sorted(ours.keys() & theirs.keys())
    a, b = fsum(ours[u].bottom for u in units), fsum(theirs[u].bottom for u in units)
    if not units or min(a, b) <= 0:
        return None
    x, y = fsum(ours[u].top for u in units), fsum(theirs[u].top for u in units)
    names = [ours[u].cluster for u in units]
    pooled, scale = (x + y) / (a + b), max(abs(ours[u].top) for u in units) / a
    scale += max(abs(theirs[u].top) for u in units) / b
    each = [_less(ours[u], pooled) / a - _less(theirs[u], pooled) / b for u in units]
    own = [_less(ours[u], x / a) / a - _less(theirs[u], y / b) / b for u in units]
    weights = by_cluster(names, [(ours[u].bottom / a + theirs[u].bottom / b) / 2 for u in units])
    shares, residuals = settled(by_cluster(names, each), scale), settled(by_cluster(names, own), scale)
    plain = all(v[u].bottom == 1 for v in (ours, theirs) for u in units)
    share = is_share(name, ours.values()) and is_share(name, theirs.values())
    result = {"value": x / a - y / b, "candidate": x / a, "baseline": y / b, "tries": len(units)}
    result |= {"rows": len({row for row, _ in units}), "clusters": len(weights)}
    centre, spread = widened(
        result["value"], shares, residuals, weights, correlation(names, each), plain, share
    )
    if spread is None or len(weights) < ENOUGH:
        return result | {"low": None, "high": None, "p": None, "smallest": None, "finding": "TooFewRows"}
    t, error = student(spread.df, 0.975), sqrt(spread.variance)
    low, high = centre - t * error, centre + t * error
    if share:
        low, high = max(-1.0, low), min(1.0, high)
    finding = "Higher" if low > 0 else "Lower" if high < 0 else "NotShown"
    smallest = (t + student(spread.df, 0.8)) * error
    return result | {"low": low, "high": high, "p": flips(shares), "smallest": smallest, "finding": finding}


def _less(value: Value, mean: float) -> float:
    return value.top - mean * value.bottom


def widened(
    centre: float,
    shares: Sequence[float],
    residuals: Sequence[float],
    weights: Sequence[float],
    rho: float,
    plain: bool,
    share: bool,
) -> tuple[float, Spread | None]:
    """The centre and spread of the interval. If many clusters have equal differences, it adds two made-up
    clusters.
    """
    k = len(weights)
    if k < 2 or not (any(residuals) or share):
        return centre, None
    looked_at = plain or not any(residuals)
    alike = commonest([s / w for s, w in zip(shares, weights, strict=True)]) if looked_at else 0.0
    if alike == 0:
        return centre, clustered(residuals, weights, rho)
    typical = fsum(weights) / k
    differ, prior = [s / typical for s in shares if s], alike if share else 0.0
    size = sqrt((dot(differ, differ) + prior) / (len(differ) + prior))
    more = [*weights, alike * typical, alike * typical]
    moved = centre * fsum(weights) / fsum(more)
    own = [r + (centre - moved) * w for r, w in zip(residuals, weights, strict=True)]
    made_up = [sqrt(alike) * typical * (end - moved) for end in (size, -size)]
    return moved, clustered([*own, *made_up], more, rho)


def commonest(means: Sequence[float]) -> float:
    """Share of clusters that have the most common mean difference. One cluster is subtracted from both
    numbers."""
    largest = max(map(abs, means)) or 1.0
    count = Counter(round(mean / largest, 9) for mean in means).most_common(1)[0][1]
    return (count - 1) / (len(means) - 1)


def flips(shares: Sequence[float]) -> tuple[float, float]:
    """Two-sided p value by sign flips, and the standard error of its difference from the report's draw.

    The error is 0 if the p value is exact.
    """
    differ = [share for share in shares if share]
    if len(differ) < 2:
        return 1.0, 0.0
    least = abs(fsum(differ)) - 1e-9 * fsum(map(abs, differ))
    if len(differ) <= EXACT:
        sums = [0.0]
        for share in differ:
            sums = [each + sign * share for each in sums for sign in (1, -1)]
        return sum(abs(each) >= least for each in sums) / len(sums), 0.0
    rng, reached = random.Random(15), 0
    for _ in range(DRAWS):
        signs = rng.getrandbits(len(differ))
        reached += abs(sum(s if signs >> at & 1 else -s for at, s in enumerate(differ))) >= least
    p = (reached + 1) / (DRAWS + 1)
    return p, sqrt(max(p * (1 - p), 1 / DRAWS) * (1 / DRAWS + 1 / FLIPS))


def holm(ps: Mapping[str, float]) -> dict[str, float]:
    """The p values with Holm's correction, by name."""
    found, least = {}, 0.0
    for rank, name in enumerate(sorted(ps, key=lambda name: ps[name])):
        least = found[name] = max(least, min(1.0, (len(ps) - rank) * ps[name]))
    return found
