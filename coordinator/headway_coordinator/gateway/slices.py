"""Validates a long list of a request slice by slice. Pure.

pydantic validates a value in one call, and no other thread of the process runs meanwhile. A request has up to
100,000 values, and validating all at once would delay all other episodes. So the long list is validated in
several short calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError, create_model

from headway_api import bounds
from headway_coordinator.gateway.refusals import bad, refuse

SLICE: Final = 4_000
"""JSON values that are validated in one call, unless a single entry has more. This takes some 10 ms."""
Checked = TypeVar("Checked", bound=BaseModel)


def checked(model: type[Checked], body: dict[str, Any], long: str, *, large: bool) -> Checked:
    """A request as its protocol's model.

    Args:
        model: the request's fields.
        body: the request's JSON.
        long: the field that may have a long list.
        large: whether to check the list in slices; a small request takes a few milliseconds as a whole.

    Raises:
        GatewayError: names the field to change.
    """
    given = body.get(long)
    if given == []:
        raise bad(long, "is empty; send at least one message")
    if not large or not isinstance(given, list):
        return _checked(model, body, 0)
    if len(given) > bounds.MESSAGES:
        raise bad(long, f"has {len(given)} entries; send at most {bounds.MESSAGES}")
    ends = [*_ends(given)]
    if len(ends) < 2:
        return _checked(model, body, 0)
    asked = _checked(model, body | {long: given[: ends[0]]}, 0)
    entries = getattr(asked, long)
    for start, end in pairwise(ends):
        entries += getattr(_checked(_alone(model, long), {long: given[start:end]}, start), long)
    return asked


def _ends(entries: Sequence[object]) -> Iterator[int]:
    """The end of each slice, as a position in `entries`."""
    values = 0
    for at, entry in enumerate(entries):
        values += _values(entry)
        if values >= SLICE or at == len(entries) - 1:
            yield at + 1
            values = 0


def _values(value: object) -> int:
    """The number of values in a list or an object, at all depths."""
    left, count = [value], 0
    while left:
        one = left.pop()
        if isinstance(one, dict | list):
            count += len(one)
            left += one.values() if isinstance(one, dict) else one
    return count


@cache
def _alone(model: type[BaseModel], name: str) -> type[BaseModel]:
    """A model that has only the field `name` of `model`."""
    field = model.model_fields[name]
    fields: dict[str, Any] = {name: (field.rebuild_annotation(), ...)}
    return create_model(model.__name__, **fields)


def _checked(model: type[Checked], body: dict[str, Any], start: int) -> Checked:
    """Validate a body. `start` is the position of the list's first entry in the request, for errors."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        refuse(error, start)
