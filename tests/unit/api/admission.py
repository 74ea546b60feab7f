"""What the API server does with an object of ours: its schema, its defaults, and the rules in CEL.

jsonschema checks the schema and Google's CEL runtime the rules, so the answer does not depend on the models.
Two behaviours of the server are missing here: the limit on a rule's cost, and its compiler's type checks.
`tests/integration/api/test_crd_admission.py` asks a real server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jsonschema
from cel_expr_python import cel
from cel_expr_python.ext import ext_strings
from jsonschema.protocols import Validator

from headway_api.document import Json
from headway_api.rules import VALIDATIONS

Path = tuple[str | int, ...]

ENVIRONMENT = cel.NewEnv(
    variables=dict.fromkeys(("self", "oldSelf", "object"), cel.Type.DYN),
    extensions=[ext_strings.ExtStrings()],
)
ASSERTIONS = ("type", "enum", "minimum", "maximum", "minLength", "maxLength", "pattern", "required")
ASSERTIONS += ("minItems", "maxItems", "minProperties", "maxProperties", "anyOf")
ASSERTIONS += ("x-kubernetes-list-type", "x-kubernetes-list-map-keys")
ANNOTATIONS = ("description", "default", "format", VALIDATIONS, "properties", "items", "additionalProperties")
ANNOTATIONS += ("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")
BLOCKING = (
    "type",
    "enum",
    "required",
    "maxLength",
    "maxItems",
    "maxProperties",
    "anyOf",
    "additionalProperties",
)
"""Schema keywords whose errors keep the server from evaluating any rule."""


@cache
def compiled(expression: str) -> cel.Expression:
    """A compiled rule. Each rule is compiled once."""
    return ENVIRONMENT.compile(expression)


def holds(expression: str, activation: cel.Activation) -> bool:
    """Whether a rule is true. As on the server, a rule that cannot be evaluated refuses the object."""
    return compiled(expression).eval(activation).value() is True


@dataclass(frozen=True)
class Placed:
    """A rule of the schema, and its place."""

    kind: str
    at: str
    """Path of its node, such as spec.judges[]."""
    cel: str
    message: str

    @property
    def is_of_a_change(self) -> bool:
        return "oldSelf" in self.cel


@dataclass
class Node:
    """A node of a schema that has rules, or has children with rules."""

    rules: list[Placed] = field(default_factory=list)
    properties: dict[str, Node] = field(default_factory=dict)
    items: Node | None = None

    def placed(self) -> Iterator[Placed]:
        """Every rule at this node and below it."""
        yield from self.rules
        for child in (*self.properties.values(), *([self.items] if self.items else [])):
            yield from child.placed()


def tree(schema: Json, kind: str, at: str = "") -> Node:
    """The nodes of a schema that have rules."""
    node = Node([Placed(kind, at, rule["rule"], rule["message"]) for rule in schema.get(VALIDATIONS, [])])
    for name, child in schema.get("properties", {}).items():
        below = tree(child, kind, f"{at}.{name}".lstrip("."))
        if any(below.placed()):
            node.properties[name] = below
    if "items" in schema and any((below := tree(schema["items"], kind, f"{at}[]")).placed()):
        node.items = below
    assert not isinstance(schema.get("additionalProperties"), dict) or not any(
        tree(schema["additionalProperties"], kind).placed()
    ), f"{at}: this has no rules of the values of a map yet"
    return node


def strict(schema: Json) -> Json:
    """A schema that refuses unknown fields, as `kubectl apply` asks the server to do."""
    unknown = schema.keys() - {*ASSERTIONS, *ANNOTATIONS}
    assert not unknown, f"{unknown}: say what the API server does with these"
    held = {key: schema[key] for key in ASSERTIONS if key in schema}
    if "properties" in schema:
        held["properties"] = {name: strict(child) for name, child in schema["properties"].items()}
        held["additionalProperties"] = False
    if isinstance(schema.get("additionalProperties"), dict):
        held["additionalProperties"] = strict(schema["additionalProperties"])
    if "items" in schema:
        held["items"] = strict(schema["items"])
    return held


@cache
def expression(pattern: str) -> re.Pattern[str]:
    r"""A pattern as Go reads it. There `$` matches only at the end, and not before a last line break as in
    Python."""
    return re.compile(re.sub(r"(?<!\\)\$$", r"\\Z", pattern))


def _pattern(validator: Validator, pattern: str, value: Any, schema: Json) -> Iterator[Any]:
    if isinstance(value, str) and not expression(pattern).search(value):
        yield jsonschema.ValidationError(f"does not match {pattern}")


def _keys(validator: Validator, keys: list[str], value: Any, schema: Json) -> Iterator[Any]:
    found = [[item.get(key) for key in keys] for item in value if isinstance(item, dict)]
    if any(found.count(one) > 1 for one in found):
        yield jsonschema.ValidationError("two items of one key")


def _list_type(validator: Validator, kind: str, value: Any, schema: Json) -> Iterator[Any]:
    if kind == "set" and any(value.count(one) > 1 for one in value):
        yield jsonschema.ValidationError("an item twice")


SCHEMAS = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    {
        "pattern": _pattern,
        "x-kubernetes-list-map-keys": _keys,
        "x-kubernetes-list-type": _list_type,
    },
)


def without_nulls(value: Any, schema: Json) -> Any:
    """A value without nulls in fields of the schema, which the server treats as absent."""
    if isinstance(value, list) and "items" in schema:
        return [without_nulls(item, schema["items"]) for item in value]
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    if not isinstance(value, dict) or not (properties or isinstance(others, dict)):
        return value
    child = {name: properties.get(name, others if isinstance(others, dict) else {}) for name in value}
    return {
        name: without_nulls(item, child[name])
        for name, item in value.items()
        if item is not None or not child[name]
    }


def completed(value: Any, schema: Json) -> Any:
    """A value with its defaults, as it is stored.

    CEL gets a `number` as a double, as on a real server.
    """
    if schema.get("type") == "number" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, list) and "items" in schema:
        return [completed(item, schema["items"]) for item in value]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties", {})
    result = {name: completed(item, properties.get(name, {})) for name, item in value.items()}
    for name, child in properties.items():
        if name not in result and "default" in child:
            result[name] = completed(child["default"], child)
    return result


def without_empty_lists(value: Any, schema: Json) -> Any:
    """A value without its empty lists. A list stays if its field has a default, or if the schema is open."""
    if isinstance(value, list) and "items" in schema:
        return [without_empty_lists(item, schema["items"]) for item in value]
    if not isinstance(value, dict) or not (properties := schema.get("properties")):
        return value
    filled = {name for name, child in properties.items() if "default" in child}
    kept = {name: item for name, item in value.items() if item != [] or name in filled}
    return {name: without_empty_lists(item, properties.get(name, {})) for name, item in kept.items()}


@dataclass(frozen=True)
class Fault:
    """An error of an object by the schema."""

    at: Path
    keyword: str
    """Keyword of the schema, such as maximum."""
    value: Any


@dataclass(frozen=True)
class AdmissionAnswer:
    """The API server's answer about an object."""

    stored: Json
    faults: list[Fault]
    """Errors by the schema."""
    tried: list[tuple[Placed, Path, bool]]
    """Each rule at each place of the object, and whether it held. Empty after an error that blocks rules."""

    @property
    def broken(self) -> list[tuple[Placed, Path]]:
        return [(rule, at) for rule, at, held in self.tried if not held]

    @property
    def accepted(self) -> bool:
        return not self.faults and not self.broken


class Server:
    """An API server that knows one CRD."""

    def __init__(self, definition: Json) -> None:
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        self.definition = definition
        self.kind: str = definition["spec"]["names"]["kind"]
        self.schema: Json = {
            **schema,
            "properties": {name: child for name, child in schema["properties"].items() if name != "status"},
        }
        self._tree = tree(self.schema, self.kind)
        self._validator = SCHEMAS(strict(self.schema) | {"additionalProperties": False})
        self.rules = [*self._tree.placed()]

    def create(self, given: Json) -> AdmissionAnswer:
        """The answer to a new object."""
        present = without_nulls(given, self.schema)
        faults = [
            Fault(tuple(error.absolute_path), str(error.validator), error.instance)
            for error in self._validator.iter_errors(present)
        ]
        stored = completed(present, self.schema)
        blocked = any(fault.keyword in BLOCKING for fault in faults)
        return AdmissionAnswer(
            stored, faults, [] if blocked else [*self._tried(self._tree, stored, None, ())]
        )

    def change(self, before: Json, after: Json) -> list[tuple[Placed, bool]]:
        """Each rule of a change from one stored object to another, and whether it held."""
        return [(rule, held) for rule, _, held in self._tried(self._tree, after, before, ())]

    def written(self, made: Json) -> Json:
        """An object as the models write it, with the defaults of the schema."""
        return completed(without_empty_lists(made, self.schema), self.schema)  # type: ignore[no-any-return]

    def _tried(self, node: Node, value: Any, old: Any, at: Path) -> Iterator[tuple[Placed, Path, bool]]:
        """Rules of an object if `old` is None, otherwise only the rules of a change."""
        rules = [rule for rule in node.rules if rule.is_of_a_change == (old is not None)]
        if rules:
            activation = ENVIRONMENT.Activation({"self": value} | ({} if old is None else {"oldSelf": old}))
            yield from ((rule, at, holds(rule.cel, activation)) for rule in rules)
        for name, child in node.properties.items():
            if name in value and (old is None or name in old):
                yield from self._tried(child, value[name], None if old is None else old[name], (*at, name))
        if node.items is not None and old is None:  # the server pairs no items of an atomic list
            for index, item in enumerate(value):
                yield from self._tried(node.items, item, None, (*at, index))
