"""Figures by step as pandas.DataFrame; pandas is imported for the first one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from headway_api.records import ValidationRecord

if TYPE_CHECKING:
    from pandas import DataFrame

Figures = Mapping[str, float]


def of(by_step: Mapping[int, Figures]) -> DataFrame:
    """A row for each step, in order; a column for each metric, by name. NaN if a step has no figure of it.

    Raises:
        ModuleNotFoundError: pandas is not installed.
    """
    try:
        from pandas import DataFrame, Index
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("tables need pandas: pip install pandas", name="pandas") from error
    steps = sorted(by_step)
    columns = sorted({name for figures in by_step.values() for name in figures})
    content = {name: [by_step[step].get(name) for step in steps] for name in columns}
    return DataFrame(content, index=Index(steps, name="step", dtype="int64"), columns=columns)


def validated(records: Iterable[ValidationRecord]) -> dict[int, Figures]:
    """The results of validations, by step: their own figures under their fields' names, and metrics."""
    return {
        each.step: {
            "reward": each.reward,
            "external_score": each.external_score,
            "success": each.success,
            "episodes": each.episodes,
            "failed": each.failed,
            **each.figures,
        }
        for each in records
    }
