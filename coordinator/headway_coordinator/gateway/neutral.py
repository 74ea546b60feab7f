"""Says which values of an unapplied field have no effect, and shortens values for error messages. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from headway_api.records import MAX_IGNORED

Table = Mapping[str, tuple[object, ...]]
"""Field that is not applied -> the values at which it would change nothing."""


def neutral(value: object, neutral: Sequence[object]) -> bool:
    """Whether a value is one of `neutral`, which have no effect. JSON's true does not equal 1 here."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral)


def bounded(names: Iterable[str]) -> tuple[str, ...]:
    """The first `MAX_IGNORED + 1` names: one more than an episode's record has room for."""
    return tuple(islice(names, MAX_IGNORED + 1))


def shown(value: object) -> str:
    """A value in the form for an error message. A long value is cut before it is formatted."""
    if isinstance(value, list | dict):
        return f"{type(value).__name__} of {len(value)}"
    return repr(value[:100] if isinstance(value, str) else value)[:102]
