"""JSON schemas for judges' answers: a part of JSON Schema without references and regular expressions. Pure.

An environment sends the schemas. Matching a `pattern` could take hours, and a `$ref` could name any address.
A keyword that is not in `KEYWORDS` is refused by name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headway_api.bounds import OutOfBoundsError, nesting, shortened

TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: _is_number(value),
    "integer": lambda value: _is_number(value) and float(value).is_integer(),
}
REMARKS: Final = ("title", "description", "default", "examples", "$schema")
"""Keywords that do not constrain a value."""
KEYWORDS: Final = (
    *("type", "enum", "const", "properties", "required", "additionalProperties", "items", "anyOf"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("minLength", "maxLength", "minItems", "maxItems"),
    *REMARKS,
)
LIMITS: Final[dict[str, tuple[type | tuple[type, ...], Callable[[Any], Any], Callable[[Any, Any], bool]]]] = {
    "minimum": ((int, float), lambda value: value, lambda found, limit: found >= limit),
    "maximum": ((int, float), lambda value: value, lambda found, limit: found <= limit),
    "exclusiveMinimum": ((int, float), lambda value: value, lambda found, limit: found > limit),
    "exclusiveMaximum": ((int, float), lambda value: value, lambda found, limit: found < limit),
    "minLength": (str, len, lambda found, limit: found >= limit),
    "maxLength": (str, len, lambda found, limit: found <= limit),
    "minItems": (list, len, lambda found, limit: found >= limit),
    "maxItems": (list, len, lambda found, limit: found <= limit),
}
"""For each limit: the kind of value it applies to, what is measured, and how it is compared."""
MAX_VALUES: Final = 2_000
MAX_DEPTH: Final = 16
SHOWN: Final = 80
MAX_COMPARISONS: Final = 200_000
"""The most steps of checking a value against a schema: some 0.6 s, in which no other episode goes on."""
MAX_NAMED: Final = 8
"""The most types that a message names."""


class InvalidSchemaError(ValueError):
    """An environment's schema cannot be used for answers. The message says where, and why."""


def require(schema: Any) -> None:
    """Raise InvalidSchemaError if answers cannot be checked against `schema`."""
    try:
        nesting(schema, MAX_DEPTH, MAX_VALUES)
    except OutOfBoundsError as error:
        raise InvalidSchemaError(f"schema: {error}") from error
    for place, one in _parts(schema, "schema"):
        if isinstance(one, bool):
            continue
        if not isinstance(one, dict):
            raise InvalidSchemaError(f"{place} must be an object, such as {{'type': 'number'}}")
        _require_one(one, place)


def _require_one(schema: Mapping[str, Any], place: str) -> None:
    """Check one object of a schema, without the schemas inside it."""
    for name, value in schema.items():
        at = f"{place}.{shortened(name, SHOWN)}"
        if name not in KEYWORDS:
            known = ", ".join(word for word in KEYWORDS if word not in REMARKS)
            raise InvalidSchemaError(f"{at} is not supported; the keywords are {known}")
        if name == "type" and not all(isinstance(one, str) and one in TYPES for one in _listed(value)):
            raise InvalidSchemaError(f"{at} must be one of {', '.join(TYPES)}, or a list of them")
        if name in LIMITS and not _is_number(value):
            raise InvalidSchemaError(f"{at} must be a number")
        wants = {"required": list, "enum": list, "anyOf": list, "properties": dict}.get(name)
        if wants is not None and not isinstance(value, wants):
            raise InvalidSchemaError(f"{at} must be {'a list' if wants is list else 'an object'}")
        if name == "required" and not all(isinstance(one, str) for one in value):
            raise InvalidSchemaError(f"{at} must be a list of names")


def _parts(schema: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Every schema in a schema, itself first. Its depth is within bounds already."""
    yield place, schema
    if not isinstance(schema, dict):
        return
    named = schema.get("properties")
    if isinstance(named, dict):
        for name, one in named.items():
            yield from _parts(one, f"{place}.properties.{shortened(str(name), SHOWN)}")
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield from _parts(schema[name], f"{place}.{name}")
    if isinstance(schema.get("anyOf"), list):
        for number, one in enumerate(schema["anyOf"]):
            yield from _parts(one, f"{place}.anyOf.{number}")


def mismatch(value: Any, schema: Any, place: str = "the answer") -> str:
    """The part of `value` that breaks `schema`, in words; empty if none does.

    Args:
        schema: one that `require` accepts.
        place: the name of `value` in the text.

    Raises:
        OutOfBoundsError: the check takes more than `MAX_COMPARISONS`: values times alternatives.
    """
    found = _Comparison().fault(value, schema, place)
    return "" if found is None else found.words()


@dataclass(frozen=True)
class _Fault:
    """A mismatch. Its text is only made if somebody reads it, because values may be large."""

    place: str
    says: str
    value: Any = None
    shows: bool = True

    def words(self) -> str:
        return f"{self.place} {self.says}" + (f": {_shown(self.value)}" if self.shows else "")


class _Comparison:
    """Checks a value against a schema, in a bounded number of steps."""

    def __init__(self) -> None:
        self._left = MAX_COMPARISONS

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise OutOfBoundsError(f"more than {MAX_COMPARISONS} comparisons of a value with its schema")

    def fault(self, value: Any, schema: Any, place: str) -> _Fault | None:
        """The first mismatch."""
        self._spend(1)
        if isinstance(schema, bool):
            return None if schema else _Fault(place, "must not be there", shows=False)
        kinds = _listed(schema["type"]) if "type" in schema else []
        self._spend(len(kinds) + len(schema.get("enum", ())))
        if "type" in schema and not any(TYPES[one](value) for one in kinds):
            return _Fault(place, f"is not of type {' or '.join(kinds[:MAX_NAMED])}", value)
        if "enum" in schema and not any(_same(value, one) for one in schema["enum"]):
            return _Fault(place, f"is not one of {_shown(schema['enum'])}", value)
        if "const" in schema and not _same(value, schema["const"]):
            return _Fault(place, f"is not {_shown(schema['const'])}", value)
        for name in filter(LIMITS.__contains__, schema):
            kind, measured, holds = LIMITS[name]
            fits = isinstance(value, kind) and not isinstance(value, bool)
            if fits and not holds(measured(value), schema[name]):
                return _Fault(place, f"breaks {name}: {schema[name]}", value)
        if "anyOf" in schema and all(self.fault(value, one, place) for one in schema["anyOf"]):
            return _Fault(place, "matches nothing in anyOf", value)
        return self._inner(value, schema, place)

    def _inner(self, value: Any, schema: Mapping[str, Any], place: str) -> _Fault | None:
        if isinstance(value, list) and "items" in schema:
            found = (self.fault(one, schema["items"], f"{place}[{n}]") for n, one in enumerate(value))
            return next(filter(None, found), None)
        if not isinstance(value, dict):
            return None
        required = schema.get("required", ())
        self._spend(len(required))
        if lacking := [name for name in required if name not in value]:
            return _Fault(place, f"lacks {_shown(lacking[0])}", shows=False)
        named, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        found = (
            self.fault(one, named.get(name, others), f"{place}.{shortened(name, SHOWN)}")
            for name, one in value.items()
        )
        return next(filter(None, found), None)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _same(one: Any, other: Any) -> bool:
    """Equality as in JSON: true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _shown(value: Any) -> str:
    """The beginning of a value as JSON. Only the part that is shown is encoded."""
    text = ""
    for part in json.JSONEncoder(ensure_ascii=False).iterencode(_cut(value)):
        text += part
        if len(text) > SHOWN:
            break
    return shortened(text, SHOWN)


def _cut(value: Any) -> Any:
    return value[: SHOWN + 1] if isinstance(value, str) else value
