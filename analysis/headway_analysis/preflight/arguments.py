"""Arguments of tool calls that nobody chose: valid by the tool's schema, and drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

from headway_analysis.preflight.conversation import function_of, parameters_of
from headway_analysis.preflight.evidence import Call, Json

DEPTH: Final = 3
"""Levels of objects that are drawn."""


def random_call(tool: Json, drawn: random.Random) -> Call:
    """A call of a tool with what it requires."""
    return Call(name_of(tool), required_arguments(tool, drawn))


def name_of(tool: Json) -> str:
    """A tool's name."""
    return str(function_of(tool).get("name", ""))


def required_arguments(tool: Json, drawn: random.Random) -> dict[str, Any]:
    """A value of each parameter that the tool requires."""
    schema = parameters_of(tool)
    properties = schema.get("properties") or {}
    required = set(schema.get("required") or ())
    return {name: value_of(each, drawn) for name, each in properties.items() if name in required}


def value_of(schema: Any, drawn: random.Random, depth: int = DEPTH) -> Any:
    """A value that a JSON schema allows, as far as type, `enum`, `minimum` and `maximum` say."""
    schema = schema if isinstance(schema, Mapping) else {}
    if schema.get("enum"):
        return drawn.choice(list(schema["enum"]))
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind in ("integer", "number"):
        low = int(schema.get("minimum", 0))
        return drawn.randint(low, max(low, int(schema.get("maximum", low + 100))))
    if kind == "boolean":
        return drawn.random() < 0.5
    if kind == "array":
        return [value_of(schema.get("items"), drawn, depth - 1)] if depth else []
    if kind == "object":
        inner = (schema.get("properties") or {}).items() if depth else ()
        return {name: value_of(each, drawn, depth - 1) for name, each in inner}
    return f"{drawn.randrange(16**6):06x}"
