"""Checks a job's rows: whether they can be read, have the needed columns, and are each in only one split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from headway_analysis import splits
from headway_analysis.preflight.definition import Finding
from headway_api.exits import JobError
from headway_api.rows import Row, check_column, load
from headway_api.spec.data import Dataset
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.store import FileStore
from headway_cli.checking.job import FILE, Spec, finding

ROWS: Final = "rows"
OVERLAP: Final = "overlap"
TRAIN: Final = "train"


@dataclass
class Data:
    """The rows of each split that could be read. The rows of an evaluation are under `TRAIN`."""

    splits: dict[str, list[Row]] = field(default_factory=dict)

    def of(self, split: str) -> list[Row]:
        """The rows of a split; empty if they could not be read."""
        return self.splits.get(split, [])


def read(spec: Spec) -> tuple[list[Finding], Data]:
    """The findings about a job's rows, and the rows themselves."""
    data, found = Data(), list[Finding]()
    for block, dataset in datasets(spec).items():
        name = block.rpartition(".")[2] if block != "spec.data" else TRAIN
        if not dataset.uri.startswith(FILE):
            found.append(_elsewhere(block, dataset))
            continue
        try:
            data.splits[name] = _loaded(block, dataset)
        except JobError as error:
            found.append(finding(ROWS, "Fail", error.termination.sentence))
    if not found:
        found.append(_passed(data))
    return [*found, *_enough(spec, data), *_overlaps(spec, data)], data


def datasets(spec: Spec) -> dict[str, Dataset]:
    """The datasets of a job, by the path of the block that names each, such as `spec.data.train`."""
    if not isinstance(spec, RLTrainingJobSpec):
        return {"spec.data": spec.data}
    named = {"train": spec.data.train, "validation": spec.data.validation, "test": spec.data.test}
    return {f"spec.data.{name}": dataset for name, dataset in named.items() if dataset is not None}


def _loaded(block: str, dataset: Dataset) -> list[Row]:
    """Load the rows of a dataset.

    Raises:
        JobError: the rows cannot be read, or lack a column that the dataset names.
    """
    rows = load(dataset, FileStore(), block)
    for name, column in (("taskColumn", dataset.task_column), ("clusterColumn", dataset.cluster_column)):
        if column is not None:
            check_column(rows, column, f"{block}.{name}")
    return rows


def _elsewhere(block: str, dataset: Dataset) -> Finding:
    observed = f"{dataset.uri} is not read here, so its rows are not known."
    advice = f"Name a copy on this machine: --set {block}.uri={FILE}/FOLDER/ROWS.jsonl"
    return Finding(ROWS, "Unknown", observed, advice=advice, field=f"{block}.uri")


def _passed(data: Data) -> Finding:
    counts = ", ".join(f"{len(rows)} {name}" for name, rows in data.splits.items())
    columns = ", ".join(dict.fromkeys(column for row in data.of(TRAIN)[:100] for column in row))
    return Finding(ROWS, "Pass", f"{counts} rows, with the columns {columns}.")


def _enough(spec: Spec, data: Data) -> Iterator[Finding]:
    """A finding if the training rows do not fill one batch in all epochs."""
    if not isinstance(spec, RLTrainingJobSpec) or TRAIN not in data.splits:
        return
    rows, size, epochs = len(data.of(TRAIN)), spec.algorithm.batch_size, spec.schedule.max_epochs
    if rows * epochs < size:
        observed = f"{rows} rows in {epochs} epochs do not fill one batch of {size}."
        advice = "Lower batchSize, raise schedule.maxEpochs, or add rows."
        yield Finding(ROWS, "Fail", observed, advice=advice, field="spec.algorithm.batchSize")


def _overlaps(spec: Spec, data: Data) -> Iterator[Finding]:
    if not isinstance(spec, RLTrainingJobSpec) or len(data.splits) < 2:
        return
    known = datasets(spec)
    columns = {name: known[f"spec.data.{name}"].prompt_column for name in data.splits}
    found = splits.of_job(data.splits, columns)
    try:
        warned = splits.check(found, allowed=spec.data.allow_overlap)
    except JobError as error:
        yield finding(OVERLAP, "Fail", error.termination.sentence)
        return
    for text in warned:
        yield Finding(
            OVERLAP, "Warn", f"{text}.", advice="Remove them from one of the two.", field="spec.data"
        )
    if not warned:
        yield Finding(OVERLAP, "Pass", "No row or prompt of one split is in another.")
