"""The recorded series as typed objects.

    for series in read.all_series("chosen_on"):
        for step, metrics, validation in series.steps:
            ...

`series.known` is what a signal may know of the job. If a step lacks a metric, its metrics lack that key.
"""

from __future__ import annotations

from tests.signals.series import Expected, Known, Series, Split, Step
from tests.signals.series import read_all as all_series

__all__ = ["Expected", "Known", "Series", "Split", "Step", "all_series", "clean", "provoking"]


def clean(split: Split | None = None) -> list[Series]:
    """Runs in which every raised signal is a false alarm."""
    return [series for series in all_series(split) if series.clean]


def provoking(split: Split | None = None) -> list[Series]:
    """Runs that provoke a symptom."""
    return [series for series in all_series(split) if series.expected]
