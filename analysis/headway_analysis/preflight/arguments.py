"""Random arguments of tool calls. They are valid by the tool's schema, and reproducible from a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any, Final

from headway_analysis.preflight.conversation import function_of, parameters_of, properties_of
from headway_analysis.preflight.evidence import Call
from headway_api.document import JsonView

DEPTH: Final = 3
"""Maximum levels of nested objects in a drawn value."""


def random_call(tool: JsonView, drawn: random.Random) -> Call:
    """A call of a tool with random values of the parameters that the tool requires."""
    return Call(name_of(tool), required_arguments(tool, drawn))


def name_of(tool: JsonView) -> str:
    """A tool's name."""
    return str(function_of(tool).get("name", ""))


def required_arguments(tool: JsonView, drawn: random.Random) -> dict[str, Any]:
    """A random value of each parameter that the tool requires."""
    schema = parameters_of(tool)
    listed = schema.get("required")
    required = listed if isinstance(listed, list) else []
    return {name: value_of(each, drawn) for name, each in properties_of(schema).items() if name in required}


def value_of(schema: Any, drawn: random.Random, depth: int = DEPTH) -> Any:
    """A random value that a JSON schema allows, by its `type`, `enum`, `minimum` and `maximum` alone."""
    schema = schema if isinstance(schema, Mapping) else {}
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return drawn.choice(schema["enum"])
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind in ("integer", "number"):
        low = _bound(schema.get("minimum"), 0)
        return drawn.randint(low, max(low, _bound(schema.get("maximum"), low + 100)))
    if kind == "boolean":
        return drawn.random() < 0.5
    if kind == "array":
        return [value_of(schema.get("items"), drawn, depth - 1)] if depth else []
    if kind == "object":
        inner = properties_of(schema).items() if depth else ()
        return {name: value_of(each, drawn, depth - 1) for name, each in inner}
    return f"{drawn.randrange(16**6):06x}"


def _bound(given: Any, otherwise: int) -> int:
    known = isinstance(given, int | float) and math.isfinite(given)
    return int(given) if known else otherwise
