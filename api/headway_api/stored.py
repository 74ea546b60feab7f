"""Reads records from the store, within bounds: anybody who may write to the bucket may have written anything.

An object that is not what the job wrote causes a typed error with its URI, and no other harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from headway_api import bounds
from headway_api.bounds import OutOfBoundsError, containers_within
from headway_api.packed import unpacked
from headway_api.record import explained
from headway_api.records import GroupRecord
from headway_api.store import Store, get_each, unreadable

T = TypeVar("T")
Stored = TypeVar("Stored", bound=BaseModel)


def parsed(record: type[Stored], data: bytes) -> Stored:
    """Parse an object as a record.

    Raises:
        OutOfBoundsError: `data` is not such a record, or too large. The text names the field and its fault.
    """
    if len(data) > bounds.UNPACKED:
        raise OutOfBoundsError(f"more than {bounds.UNPACKED} bytes")
    try:
        return record.model_validate_json(containers_within(data, bounds.CONTAINERS))
    except ValidationError as error:
        raise OutOfBoundsError(f"no {record.__name__}: {explained(error)}") from error


def group(data: bytes) -> GroupRecord:
    """Parse an object of the spool as a group; raises OutOfBoundsError."""
    return parsed(GroupRecord, unpacked(data, bounds.UNPACKED))


def read(store: Store, uri: str, record: type[Stored]) -> Stored:
    """The record at `uri`.

    Raises:
        JobError: `RecordUnreadable`.
        ObjectNotFoundError: there is no such object; also the other errors of `Store.get`.
    """
    return _decoded(uri, store.get(uri), lambda data: parsed(record, data))


def read_each(store: Store, uris: Sequence[str], decode: Callable[[bytes], T]) -> Iterator[T]:
    """Decode many small objects with `decode`, in their order; raises as `read` does.

    Args:
        decode: raises OutOfBoundsError.
    """
    for uri, data in zip(uris, get_each(store, uris), strict=True):
        yield _decoded(uri, data, decode)


def _decoded(uri: str, data: bytes, decode: Callable[[bytes], T]) -> T:
    try:
        return decode(data)
    except OutOfBoundsError as error:
        raise unreadable(uri, str(error)) from error
