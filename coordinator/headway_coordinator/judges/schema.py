"""JSON schemas that an answer is held to: the part of the language that reads nothing and searches nothing.

An environment writes them, so a pattern could search for hours, and a `$ref` have any address read. What is
not in `KEYWORDS` is refused by name. Pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from headway_api.bounds import OutOfBounds, nesting, shortened

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
"""What says nothing of a value."""
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
"""Of what kind of value a limit is, what of it is measured, and how."""
MOST_VALUES: Final = 2_000
MOST_DEPTH: Final = 16
SHOWN: Final = 80


class BadSchema(ValueError):
    """What an environment gave as a schema is none that answers are held to; says where, and why."""


def require(schema: Any) -> None:
    """Raise BadSchema where answers cannot be held to `schema`."""
    try:
        nesting(schema, MOST_DEPTH, MOST_VALUES)
    except OutOfBounds as error:
        raise BadSchema(f"schema: {error}") from error
    for place, one in _parts(schema, "schema"):
        if isinstance(one, bool):
            continue
        if not isinstance(one, dict):
            raise BadSchema(f"{place} must be an object, such as {{'type': 'number'}}")
        _require_one(one, place)


def _require_one(schema: Mapping[str, Any], place: str) -> None:
    """What stands in one object of a schema, without those in it."""
    for name, value in schema.items():
        at = f"{place}.{shortened(name, SHOWN)}"
        if name not in KEYWORDS:
            known = ", ".join(word for word in KEYWORDS if word not in REMARKS)
            raise BadSchema(f"{at} is not read; the keywords are {known}")
        if name == "type" and not all(isinstance(one, str) and one in TYPES for one in _listed(value)):
            raise BadSchema(f"{at} must be one of {', '.join(TYPES)}, or a list of them")
        if name in LIMITS and not _is_number(value):
            raise BadSchema(f"{at} must be a number")
        wants = {"required": list, "enum": list, "anyOf": list, "properties": dict}.get(name)
        if wants is not None and not isinstance(value, wants):
            raise BadSchema(f"{at} must be {'a list' if wants is list else 'an object'}")
        if name == "required" and not all(isinstance(one, str) for one in value):
            raise BadSchema(f"{at} must be a list of names")


def _parts(schema: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Every schema in a schema, itself first. Its depth is known to be within bounds."""
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
    """What of `value` is not as `schema` says, in words; empty where all of it is.

    Args:
        schema: one that `require` takes.
        place: how `value` is called.
    """
    if isinstance(schema, bool):
        return "" if schema else f"{place} is not to be there"
    if "type" in schema and not any(TYPES[one](value) for one in _listed(schema["type"])):
        return f"{place} is no {' or '.join(_listed(schema['type']))}: {_shown(value)}"
    if "enum" in schema and not any(_same(value, one) for one in schema["enum"]):
        return f"{place} is none of {_shown(schema['enum'])}: {_shown(value)}"
    if "const" in schema and not _same(value, schema["const"]):
        return f"{place} is not {_shown(schema['const'])}: {_shown(value)}"
    for name, (kind, measured, holds) in LIMITS.items():
        fits = isinstance(value, kind) and not isinstance(value, bool)
        if name in schema and fits and not holds(measured(value), schema[name]):
            return f"{place} breaks {name}: {schema[name]}: {_shown(value)}"
    if "anyOf" in schema and all(mismatch(value, one, place) for one in schema["anyOf"]):
        return f"{place} is as none of anyOf says: {_shown(value)}"
    return _inner(value, schema, place)


def _inner(value: Any, schema: Mapping[str, Any], place: str) -> str:
    if isinstance(value, list) and "items" in schema:
        found = (mismatch(one, schema["items"], f"{place}[{n}]") for n, one in enumerate(value))
        return next(filter(None, found), "")
    if not isinstance(value, dict):
        return ""
    if lacking := [name for name in schema.get("required", ()) if name not in value]:
        return f"{place} lacks {_shown(lacking[0])}"
    named, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    found = (
        mismatch(one, named.get(name, others), f"{place}.{shortened(name, SHOWN)}")
        for name, one in value.items()
    )
    return next(filter(None, found), "")


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _same(one: Any, other: Any) -> bool:
    """As JSON has it: true is no 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _shown(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False), SHOWN)
