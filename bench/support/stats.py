"""Statistics of measurements."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Exponent p of the best fit y = c * x**p, by least squares of the logarithms."""
    logs_x, logs_y = [math.log(v) for v in x], [math.log(v) for v in y]
    mean_x, mean_y = sum(logs_x) / len(logs_x), sum(logs_y) / len(logs_y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(logs_x, logs_y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in logs_x)


def interval(cells: Sequence[Sequence[float]], draws: int = 2000) -> tuple[float, float]:
    """The 95 % bootstrap interval of the geometric mean of the cells' medians.

    Each draw takes each cell's ratios with replacement from the measured ones.
    """
    draw = random.Random(0)
    means = sorted(
        statistics.geometric_mean(statistics.median(draw.choices(ratios, k=len(ratios))) for ratios in cells)
        for _ in range(draws)
    )
    return means[int(0.025 * draws)], means[int(0.975 * draws)]


def shown(value: float, digits: int = 3) -> float:
    """A value, rounded to `digits` significant digits."""
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))
