"""The rows and samples that each candidate is measured on: the job's dataset, then its suites. Pure.

A position means the same row or sample in every process of the job. So seeds and group ids are derived from
the position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway_api.rows import Row
from headway_api.spec.evaluation import RLEvalJobSpec


@dataclass(frozen=True)
class Measured:
    """A row of the dataset, or a sample of a suite."""

    row: Row
    """The row that the environment's reset gets."""
    size: int
    """The number of tries."""
    task: str = ""
    cluster: str | None = None
    """The row's value in the cluster column."""
    suite: str | None = None
    """The suite of a sample; None for a row of the job's own dataset."""
    row_id: str = ""


def measured(spec: RLEvalJobSpec, rows: Sequence[Row]) -> list[Measured]:
    """All rows and samples, by position."""
    return [*_rows(spec, rows), *_samples(spec)]


def _rows(spec: RLEvalJobSpec, rows: Sequence[Row]) -> Iterator[Measured]:
    data = spec.data
    for row in rows:
        task, cluster = _text(row, data.task_column) or "", _text(row, data.cluster_column)
        yield Measured(row, spec.evaluation.group_size, task, cluster)


def _samples(spec: RLEvalJobSpec) -> Iterator[Measured]:
    for suite in spec.suites:
        for sample in range(suite.limit):
            where = {"task": suite.name, "suite": suite.name, "row_id": f"{suite.name}-{sample}"}
            yield Measured(suite.row(sample), suite.epochs, **where)


def _text(row: Mapping[str, Any], column: str | None) -> str | None:
    """A row's value in a column, as text; None if the spec names no column."""
    return None if column is None else str(row[column])
