"""Values of fields: those that make no difference, and how messages show any. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from headway_api.records import MAX_IGNORED

Table = Mapping[str, tuple[object, ...]]
"""Fields that are not applied, with the values at which they would change nothing."""


def neutral(value: object, neutral: Sequence[object]) -> bool:
    """Whether a value makes no difference. JSON's true is not 1."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral)


def bounded(names: Iterable[str]) -> tuple[str, ...]:
    """The first names, and one more than a record has room for."""
    return tuple(islice(names, MAX_IGNORED + 1))


def shown(value: object) -> str:
    """A value as a message shows it. A long one is cut before it is written out."""
    if isinstance(value, list | dict):
        return f"{type(value).__name__} of {len(value)}"
    return repr(value[:100] if isinstance(value, str) else value)[:102]
