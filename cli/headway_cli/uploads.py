"""Reads and checks files of rows, and uploads them and a model for a job."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from headway_analysis import overlaps
from headway_api import bounds, rows
from headway_api.bounds import shortened
from headway_api.exits import JobError
from headway_api.spec.data import FORMATS, Format
from headway_api.spec.lifecycle import OutputSpec
from headway_api.store import Store, StoreDeniedError, digest, open_store, upload_folder
from headway_api.store_faults import unavailable_here
from headway_api.store_refused import SHELL, refusal
from headway_cli.local.manifest import ManifestError

PROMPT: Final = "prompt"
"""Column that every row must fill, if the first row has it. It is a job's default `promptColumn`."""
SPLITS: Final = ("train", "validation", "test")
KINDS: Final[Mapping[type, str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "list",
    dict: "object",
}
"""JSON's name for each type of a value."""
CONFIG: Final = "config.json"
"""File that every folder of a model has."""
NUMBERED: Final = re.compile(r"\brow (\d+)\b")
"""A row's number, from 0, in an error of the reader of rows."""


class InvalidRowsError(ManifestError):
    """A file has a row that a job could not read; the message names the file, the line and what to change."""


class PushError(ManifestError):
    """Files cannot be uploaded to the target; the message says why, and what to write."""


@dataclass(frozen=True)
class Column:
    """One column of a file of rows."""

    name: str
    kinds: tuple[str, ...]
    """JSON types of the column's values, the most frequent first."""
    rows: int
    """Number of rows that have a value in this column."""


@dataclass(frozen=True)
class Table:
    """A file of rows that a job can read."""

    path: Path
    rows: int
    columns: tuple[Column, ...]
    size: int
    """Bytes of the file."""
    sha256: str
    keys: tuple[bytes, ...] = field(repr=False)
    """A key for each row. Equal rows have equal keys."""


def read(path: Path) -> Table:
    """Read and check a file with a job's own reader.

    Raises:
        InvalidRowsError: a job could not read the file; the message names the line, if the format has lines.
    """
    form = format_of(path)
    try:
        size = path.stat().st_size
        if size > bounds.DATASET:
            raise InvalidRowsError(f"{path} has more than {bounds.DATASET} bytes: split it over several jobs")
        data, file = path.read_bytes(), digest(path)
    except OSError as error:
        raise InvalidRowsError(f"{path}: {error.strerror}") from error
    try:
        found = rows.parse(data, form)
    except ModuleNotFoundError as error:
        raise InvalidRowsError(
            f"{path}: reading {form} needs {error.name}: pip install {error.name}"
        ) from error
    except Exception as error:  # the remedy is the same for every error of a parser
        why = shortened(str(error), 500)
        named = NUMBERED.search(why)
        line = None if named is None else line_of(data, form, int(named[1]))
        raise InvalidRowsError(f"{_place(path, line)}: {why}") from error
    if not found:
        raise InvalidRowsError(f"{path} has no rows: write one JSON object a line")
    if (bad := unusable(found)) is not None:
        row, why = bad
        raise InvalidRowsError(f"{_place(path, line_of(data, form, row))}: row {row} {why}")
    keys = tuple(sha256(overlaps.content(row).encode(errors="replace")).digest() for row in found)
    return Table(path, len(found), columns_of(found), file.size, file.sha256, keys)


def format_of(path: Path) -> Format:
    """The format of a file of rows, from the file's extension.

    Raises:
        InvalidRowsError: a job knows no format with this extension.
    """
    for form in FORMATS:
        if path.suffix == f".{form}":
            return form
    raise InvalidRowsError(f"{path}: a job finds the format by the name: end it in .{', .'.join(FORMATS)}")


def unusable(found: Sequence[rows.Row]) -> tuple[int, str] | None:
    """The number, from 0, of the first row that a job would refuse, and why; None if there is none."""
    for number, row in enumerate(found):
        if not row:
            return number, "has no columns: write those that the environment's reset reads"
        if PROMPT in found[0] and row.get(PROMPT) in (None, ""):
            return number, f"has no {PROMPT!r}: fill the column, or rename it in every row"
    return None


def columns_of(found: Sequence[rows.Row]) -> tuple[Column, ...]:
    """The columns of all rows, in the order of their first appearance."""
    counts: dict[str, dict[str, int]] = {}
    for row in found:
        for name, value in row.items():
            kinds = counts.setdefault(name, {})
            if (plain := to_jsonable_python(value)) is not None:
                kind = KINDS[type(plain)]
                kinds[kind] = kinds.get(kind, 0) + 1
    return tuple(
        Column(name, tuple(sorted(kinds, key=lambda kind: -kinds[kind])), sum(kinds.values()))
        for name, kinds in counts.items()
    )


def line_of(data: bytes, form: Format, row: int) -> int | None:
    """Line of the file, from 1, on which a row ends; None if its format has no lines, or too few rows."""
    if form == "jsonl":
        lines = (n for n, line in enumerate(io.BytesIO(data), 1) if line.strip())
        return next((n for number, n in enumerate(lines) if number == row), None)
    if form == "csv":
        reader = csv.reader(io.StringIO(data.decode(errors="replace"), newline=""))
        records = (reader.line_num for record in reader if record)
        return next((n for number, n in enumerate(records) if number == row + 1), None)
    return None


def shared(tables: Sequence[Table]) -> list[str]:
    """Warnings about pairs of files that have the same rows."""
    warnings = []
    for one, other in itertools.combinations(tables, 2):
        if alike := overlaps.shared(other.keys, one.keys):
            warnings.append(
                f"{other.path} has {len(alike)} of the rows of {one.path}: a job refuses held-out rows that "
                "are training rows too (spec.data.allowOverlap)"
            )
    return warnings


def _place(path: Path, line: int | None) -> str:
    return str(path) if line is None else f"{path}, line {line}"


def target_of(where: str) -> str:
    """The URI of the target folder, without a slash at its end.

    Raises:
        PushError: it is no URI from which a job could read.
    """
    folder = where.rstrip("/")
    if not (where.startswith("s3://") and folder != "s3:") and not where.startswith("file:///"):
        raise PushError(f"{where}: write s3://BUCKET/PREFIX, or file:///FOLDER on this machine")
    return folder


def opened(target: str, endpoint_url: str | None) -> Store:
    """Open the store of a target, with the credentials in this process's environment.

    Raises:
        PushError: the store cannot be used.
    """
    try:
        return open_store(OutputSpec(uri=target, endpoint_url=endpoint_url))
    except ModuleNotFoundError as error:
        raise PushError(f"{target}: writing to buckets needs boto3: pip install boto3") from error
    except ValidationError as error:
        raise PushError(f"--endpoint-url {endpoint_url}: write http://HOST:PORT or https://HOST") from error
    except JobError as error:
        raise PushError(f"{target}: {unavailable_here(target, error)}") from error
    except ValueError as error:
        raise PushError(f"{target}: {error}") from error


def push(store: Store, table: Table, target: str) -> str:
    """Upload a file that `read` has checked. Return the URI of the copy.

    Raises:
        PushError: the store refuses the file, or the file has changed since `read`.
    """
    uri = f"{target}/{table.path.name}"
    with _reported(uri):
        store.upload(table.path, uri)
        arrived = store.size(uri)
    if digest(table.path).sha256 != table.sha256 or arrived != table.size:
        raise PushError(f"{table.path} was changed while it was uploaded: push it again")
    return uri


def model_of(folder: Path) -> Path:
    """The absolute path of a model's folder.

    Raises:
        PushError: the folder has no model.
    """
    if not (folder / CONFIG).is_file():
        raise PushError(
            f"--model {folder}: it has no {CONFIG}: name the folder of a model, such as tiny-model"
        )
    return folder.resolve()


def push_model(store: Store, folder: Path, target: str) -> str:
    """Upload the files of a model. Return the URI of the model's folder in the store.

    Raises:
        PushError: the store refuses a file.
    """
    uri = f"{target}/{folder.name}"
    with _reported(uri):
        upload_folder(store, folder, uri)
    return uri


@contextmanager
def _reported(uri: str) -> Iterator[None]:
    """Turn every error of a store into PushError. `uri` is what the block writes."""
    try:
        yield
    except StoreDeniedError as error:
        raise PushError(f"{error}; {refusal(error, SHELL).fix}") from error
    except Exception as error:  # of boto3, its transport, or the file system: shown as it is
        raise PushError(f"{uri}: {shortened(str(error), 500)}") from error


def block_of(path: Path) -> str | None:
    """The block of `spec.data` in a file's name: `train`, `validation` or `test`; None for another name."""
    return path.stem if path.stem in SPLITS else None


def blocks(pushed: Mapping[Path, str]) -> dict[str, Any]:
    """The content of `spec.data` for uploaded files whose names say their block.

    Args:
        pushed: URI of each uploaded file, by its path.
    """
    found = {block_of(path): {"uri": uri} for path, uri in pushed.items()}
    return {split: found[split] for split in SPLITS if split in found}
