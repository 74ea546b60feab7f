"""Rows of a dataset: how a table is read, and what each row must have.

The coordinator and the checks before a job both use this module, so they refuse the same rows.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic_core import to_jsonable_python

from headway_api import bounds
from headway_api.bounds import OutOfBoundsError, json_within, shortened
from headway_api.exits import JobError
from headway_api.spec.data import Dataset, Format
from headway_api.store import ObjectNotFoundError, Store, StoreDeniedError

Row = dict[str, Any]
ROWS_AT_ONCE: Final = 256
"""Rows of a parquet file that are decompressed together. A row may have a thousand times as many bytes as in
its compressed form."""
VALUES: Final = 100_000_000
"""Maximum lists, objects and values in them, in one JSON file."""


def parse(data: bytes, form: Format) -> list[Row]:
    """Read a table; every column is kept.

    Raises:
        ValueError: the content does not match its format, or exceeds a bound. The message names a faulty
            row by its number, from 0.
    """
    rows: list[Row] = []
    size = 0
    for number, row in enumerate(_rows(data, form)):
        if not isinstance(row, dict):
            raise ValueError(f"row {number} is {type(row).__name__}; expected one JSON object a row")
        if number >= bounds.ROWS:
            raise ValueError(f"it has more than {bounds.ROWS} rows; split it over several jobs")
        size += _size(number, row)
        if size > bounds.DATASET:
            raise ValueError(f"its rows up to {number} are more than {bounds.DATASET} bytes; split it")
        rows.append(row)
    return rows


def _rows(data: bytes, form: Format) -> Iterator[Any]:
    if form == "parquet":
        import pyarrow.parquet as pq

        number = 0
        for batch in pq.ParquetFile(io.BytesIO(data)).iter_batches(batch_size=ROWS_AT_ONCE):
            if batch.nbytes > ROWS_AT_ONCE * bounds.ROW:
                raise ValueError(f"a row from {number} on is more than {bounds.ROW} bytes; shorten it")
            number += batch.num_rows
            yield from batch.to_pylist()
        return
    data = data.removeprefix(codecs.BOM_UTF8)
    if form == "csv":
        yield from _csv(data.decode())
    elif form == "jsonl":
        yield from _lines(data)
    else:
        depth = bounds.DEPTH + 1
        found = json_within(data, bounds.DATASET, values=VALUES, depth=depth, halves=True, finite=False)
        if not isinstance(found, list):
            raise ValueError("expected a list with one JSON object a row")
        yield from found


def _lines(data: bytes) -> Iterator[Any]:
    """The JSON value of each line. Only a line feed ends a line, because strings in JSON may contain
    Unicode's other line separators."""
    number = 0
    for line in io.BytesIO(data):
        if not line.strip():
            continue
        try:
            yield json_within(line.strip(), bounds.ROW, halves=True, finite=False)
        except OutOfBoundsError as error:
            raise ValueError(f"row {number} cannot be read: {error}; correct or remove it") from error
        number += 1


def _csv(text: str) -> Iterator[Row]:
    csv.field_size_limit(bounds.ROW)
    number = 0
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        columns = list(reader.fieldnames or ())
        if twice := next((name for name in columns if columns.count(name) > 1), None):
            raise ValueError(f"two columns are named {shortened(twice, 60)!r}; rename one")
        for row in reader:
            if None in row:  # DictReader puts surplus cells there
                raise ValueError(
                    f"row {number} has more cells than there are columns; quote cells with commas"
                )
            if (short := next((name for name, cell in row.items() if cell is None), None)) is not None:
                raise ValueError(f"row {number} ends before column {short!r}")
            yield dict(row)
            number += 1
    except csv.Error as error:
        raise ValueError(f"row {number}: {error}; a cell has at most {bounds.ROW} characters") from error


def _size(number: int, row: Row) -> int:
    """Bytes of a row as JSON, the form in which the environment receives it. NaN (a table's missing value)
    becomes null.

    Raises:
        ValueError: a value cannot be JSON, or is too large; the message names the row and the column.
    """
    total = 0
    for name, value in row.items():
        try:
            size = len(json.dumps(to_jsonable_python(value), ensure_ascii=False).encode())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"column {name!r} of row {number} cannot be written as JSON: {error}") from error
        total += size + len(name) + len('"": , ')
        if total > bounds.ROW:
            raise ValueError(
                f"row {number} is more than {bounds.ROW} bytes with column {shortened(name, 60)!r}; "
                "shorten it, or replace it with a reference that the environment resolves"
            )
    return total


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
        data = store.get_start(dataset.uri, bounds.DATASET + 1)
    except ObjectNotFoundError:
        raise JobError(
            "DatasetNotFound", f"no object at {dataset.uri}; correct the URI", field=field
        ) from None
    except StoreDeniedError as error:
        text = f"{error}; correct the URI, or let the credentials of spec.output read it"
        raise JobError("DatasetNotFound", text, field=field) from error
    except Exception as error:  # the store did not answer; its refusals are handled above
        text = f"{dataset.uri} could not be fetched: {type(error).__name__}: {error}"
        raise JobError("DatasetNotFetched", text, field=field, permanent=False) from error
    if len(data) > bounds.DATASET:
        text = f"{dataset.uri} has more than {bounds.DATASET} bytes; split it over several jobs"
        raise JobError("DatasetUnreadable", text, field=field)
    try:
        rows = parse(data, dataset.effective_format)
    except Exception as error:  # parsers raise anything; the fix is the same
        raise JobError(
            "DatasetUnreadable",
            f"{dataset.uri} is not readable {dataset.effective_format}: {shortened(str(error), 500)}; "
            "correct format or the file",
            field=field,
        ) from error
    if not rows:
        text = f"{dataset.uri} has no rows; write rows to it, or name another file"
        raise JobError("DatasetEmpty", text, field=field)
    check_prompts(dataset, rows, block)
    return rows


def check_prompts(dataset: Dataset, rows: Sequence[Row], block: str) -> None:
    """Check that every row has a prompt: in the named column, or in `prompt` if there is such a column.

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
            f"row {bad} of {dataset.uri} has no {name!r}; columns are {', '.join(columns)}: name one of "
            "them, or fill the column",
            field=f"{block}.promptColumn",
        )


def check_column(rows: Sequence[Row], column: str, field: str) -> None:
    """Check that every row has a value in `column`, which `field` of the spec names.

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
    """The task of each row; None if no column names it."""
    return None if column is None else [str(row[column]) for row in rows]


def prompt_of(row: Row, column: str | None) -> str:
    """The prompt of a row: from the named column, otherwise from `prompt`, otherwise from the first
    column."""
    value = row[column] if column else row.get("prompt", next(iter(row.values())))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
