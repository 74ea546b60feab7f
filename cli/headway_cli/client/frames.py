"""Metrics by step as pandas.DataFrame. pandas is imported only when a table is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from headway_api.records import ValidationRecord

if TYPE_CHECKING:
    from pandas import DataFrame

Metrics = Mapping[str, float]


def table(by_step: Mapping[int, Metrics]) -> DataFrame:
    """A table with a row for each step, in order, and a column for each metric. NaN if a step lacks a metric.

    Raises:
        ModuleNotFoundError: pandas is not installed.
    """
    try:
        from pandas import DataFrame, Index
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("tables need pandas: pip install pandas", name="pandas") from error
    steps = sorted(by_step)
    columns = sorted({name for metrics in by_step.values() for name in metrics})
    content = {name: [by_step[step].get(name) for step in steps] for name in columns}
    return DataFrame(content, index=Index(steps, name="step", dtype="int64"), columns=columns)


def validated(records: Iterable[ValidationRecord]) -> dict[int, Metrics]:
    """The results of each validation, by step: the numbers of `ValidationRecord` and its metrics, by name."""
    return {
        each.step: {
            "reward": each.reward,
            "external_score": each.external_score,
            "success": each.success,
            "episodes": each.episodes,
            "failed": each.failed,
            **each.metrics,
        }
        for each in records
    }
