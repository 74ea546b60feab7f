"""Rows of a dataset, and the seeded order in which they become groups.

The order is a pure function of (seed, position): a restarted coordinator that knows nothing but a position
finds the same row, and two epochs visit the same rows in different orders.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from pydantic_core import to_jsonable_python

from headway_api.exits import JobError
from headway_api.records import Purpose
from headway_api.spec.data import Dataset, Format
from headway_api.store import Denied, NotFound, Store

Row = dict[str, Any]


@dataclass
class Data:
    """Rows of all splits."""

    train: Sequence[Row]
    validation: Sequence[Row]
    test: Sequence[Row] = ()
    tasks: dict[str, list[str]] = field(default_factory=dict)
    """By split: the task of each row as figures name it, where a column names tasks."""


@dataclass(frozen=True)
class Slot:
    """One group's place in the data."""

    position: int
    """Place in the seeded order, over all epochs."""
    epoch: int
    row: int
    """Index in the dataset."""

    def group_id(self, purpose: Purpose, step: int = 0, candidate: str | None = None) -> str:
        """The group's id: the same whenever and however often it is run. An evaluation has a candidate."""
        if purpose is Purpose.EVALUATION:
            return f"e-{candidate}-{self.position:06d}"
        if purpose is Purpose.TRAIN:
            return f"t{self.epoch}-{self.position:06d}"
        return f"v{step:06d}-{self.position:06d}"


@dataclass(frozen=True)
class Order:
    """position -> (epoch, row)."""

    rows: int
    seed: int
    shuffle: bool = True

    def slot(self, position: int) -> Slot:
        """Where `position` lies."""
        epoch, offset = divmod(position, self.rows)
        row = permutation(self.rows, self.seed, epoch)[offset] if self.shuffle else offset
        return Slot(position=position, epoch=epoch, row=row)


@lru_cache(maxsize=4)
def permutation(rows: int, seed: int | str, epoch: int) -> tuple[int, ...]:
    """The order of so many rows in an epoch."""
    order = list(range(rows))
    random.Random(f"headway/{seed}/{epoch}").shuffle(order)
    return tuple(order)


def position_of(group_id: str) -> int:
    """Inverse of `Slot.group_id`, as far as the position goes."""
    return int(group_id.rpartition("-")[2])


def parse(data: bytes, form: Format) -> list[Row]:
    """Read a table; every column is kept.

    Raises:
        ValueError: the content is not what its format says.
    """
    if form == "parquet":
        import pyarrow.parquet as pq

        return [dict(row) for row in pq.read_table(io.BytesIO(data)).to_pylist()]
    text = data.decode("utf-8-sig")
    if form == "csv":
        return _csv(text)
    if form == "jsonl":
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    else:
        rows = json.loads(text)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("expected one JSON object a row")
    return rows


def _csv(text: str) -> list[Row]:
    rows = [dict(row) for row in csv.DictReader(io.StringIO(text, newline=""), strict=True)]
    for number, row in enumerate(rows):
        if None in row:  # where DictReader puts what is left over
            raise ValueError(f"row {number} has more cells than there are columns; quote cells with commas")
        if (short := next((name for name, cell in row.items() if cell is None), None)) is not None:
            raise ValueError(f"row {number} ends before column {short!r}")
    return rows


def _check_values(rows: Sequence[Row]) -> None:
    """Rows travel to the environment as JSON, where a number that is none (a table's missing value) is null.

    Raises:
        ValueError: naming the first row and column that cannot.
    """
    for number, row in enumerate(rows):
        for name, value in row.items():
            try:
                json.dumps(to_jsonable_python(value), ensure_ascii=False).encode()
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"column {name!r} of row {number} cannot be written as JSON: {error}"
                ) from error


def load(dataset: Dataset, store: Store, block: str) -> list[Row]:
    """Fetch and read the dataset of a block of the spec, such as `spec.data.train`.

    Raises:
        JobError: `DatasetNotFound`, `DatasetUnreadable`, `DatasetEmpty`, `PromptColumnMissing` or
            `SchemeNotSupported`; the message says what to write instead. `DatasetNotFetched`, retriable.
    """
    field = f"{block}.uri"
    if urlsplit(dataset.uri).scheme not in ("s3", "file"):
        raise JobError(
            "SchemeNotSupported",
            f"{dataset.uri} cannot be read by this version; copy the file to s3:// and name it here",
            field=field,
        )
    try:
        data = store.get(dataset.uri)
    except NotFound:
        raise JobError(
            "DatasetNotFound", f"no object at {dataset.uri}; correct the URI", field=field
        ) from None
    except Denied as error:
        text = f"{error}; correct the URI, or let the credentials of spec.output read it"
        raise JobError("DatasetNotFound", text, field=field) from error
    except Exception as error:  # the store did not answer: what it says when it does is another matter
        text = f"{dataset.uri} could not be fetched: {type(error).__name__}: {error}"
        raise JobError("DatasetNotFetched", text, field=field, permanent=False) from error
    try:
        rows = parse(data, dataset.effective_format)
        _check_values(rows)
    except Exception as error:  # whatever a parser raises, the remedy is the same
        raise JobError(
            "DatasetUnreadable",
            f"{dataset.uri} is not readable {dataset.effective_format}: {error}; correct format or the file",
            field=field,
        ) from error
    if not rows:
        raise JobError("DatasetEmpty", f"{dataset.uri} has no rows", field=field)
    check_prompts(dataset, rows, block)
    return rows


def check_prompts(dataset: Dataset, rows: Sequence[Row], block: str) -> None:
    """Every row has a prompt: in the column asked for, else in `prompt` where there is one.

    Raises:
        JobError: `PromptColumnMissing`, naming the columns there are and the first row without a prompt.
    """
    columns = list(rows[0])
    name = dataset.prompt_column or "prompt"
    if dataset.prompt_column is None and name not in columns:
        return
    bad = next((i for i, row in enumerate(rows) if row.get(name) in (None, "")), None)
    if bad is not None:
        raise JobError(
            "PromptColumnMissing",
            f"row {bad} of {dataset.uri} has no {name!r}; columns are {', '.join(columns)}",
            field=f"{block}.promptColumn",
        )


def check_column(rows: Sequence[Row], column: str, field: str) -> None:
    """Every row has a value in `column`, which `field` of the spec names.

    Raises:
        JobError: `ColumnMissing`, naming the columns there are and the first row without a value.
    """
    bad = next((number for number, row in enumerate(rows) if row.get(column) in (None, "")), None)
    if bad is not None:
        columns = ", ".join(rows[bad])
        raise JobError(
            "ColumnMissing",
            f"row {bad} has no {column!r}; columns are {columns}: name one of them, or fill the column",
            field=field,
        )


def tasks_of(rows: Sequence[Row], column: str | None) -> list[str] | None:
    """The task of each row; None where no column names it."""
    return None if column is None else [str(row[column]) for row in rows]


def digest(rows: Sequence[Row]) -> str:
    """SHA-256, in hex, of the rows as they travel to the environment. The order of columns counts: the first
    may be the prompt."""
    found = hashlib.sha256()
    for row in rows:
        found.update(json.dumps(to_jsonable_python(row)).encode() + b"\n")
    return found.hexdigest()


def prompt_of(row: Row, column: str | None) -> str:
    """The prompt in a row: of the column asked for, else `prompt`, else the first."""
    value = row[column] if column else row.get("prompt", next(iter(row.values())))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
