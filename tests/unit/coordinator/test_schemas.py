"""Schemas that turns must follow: what the server receives, and which are refused, where and why."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, Field

from headway_api import bounds
from headway_coordinator.gateway import schemas
from headway_coordinator.gateway.refusals import GatewayError


class Line(BaseModel):
    """One line of an `Order`."""

    item: str = Field(description="Which one", max_length=40)
    count: int = Field(ge=1, le=99)
    note: str | None = None


class Node(BaseModel):
    """A recursive type: a tree."""

    name: str
    children: list[Node] = []


class Order(BaseModel):
    """A type from which an agent framework makes a schema."""

    lines: list[Line] = Field(min_length=1, max_length=5)
    total: float
    paid: bool = False
    labels: dict[str, int] = {}
    tree: Node | None = None


def sent(schema: Any) -> Any:
    return json.loads(schemas.text(schema, "s"))


def test_schema_of_a_framework_is_sent_without_annotations() -> None:
    found = sent(Order.model_json_schema())
    assert found["$defs"]["Line"] == {
        "type": "object",
        "properties": {
            "item": {"type": "string", "maxLength": 40},
            "count": {"type": "integer", "minimum": 1, "maximum": 99},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["item", "count"],
    }
    assert found["$defs"]["Node"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert "title" not in json.dumps(found)


def test_a_schema_may_refer_to_its_own_definitions() -> None:
    assert sent(Node.model_json_schema())["$ref"] == "#/$defs/Node"


STRING = {"type": "string"}
OBJECT = {"type": "object", "properties": {"a": STRING}}
LONG = {key: {"type": "string", "maxLength": 30} for key in "abc"}
URIS = {key: {"type": "string", "format": "uri"} for key in "abcdefghijk"}
LOOP = {"$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"anyOf": [{"$ref": "#/$defs/A"}, STRING]}}}


@pytest.mark.parametrize(
    ("at", "schema", "says"),
    [
        ("s", [], "must be an object"),
        ("s", "x", "must be an object"),
        ("s.pattern", {"type": "string", "pattern": "(a+)+b"}, "list the values as an enum"),
        ("s.properties.a.not", OBJECT | {"properties": {"a": {"not": {}}}}, "say what is allowed"),
        ("s.nullable", {"type": "string", "nullable": True}, "null"),
        ("s.uniqueItems", {"type": "array", "uniqueItems": True}, "in the environment"),
        ("s.x", {"x": 1}, "the keywords are"),
        ("s.type", {"type": "text"}, "must be one of"),
        ("s.type", {"type": ["string", "string"]}, "each once"),
        ("s.type", {"type": []}, "must be one of"),
        ("s.type", {"type": [["string"]]}, "must be one of"),
        ("s.type", {"minLength": 3}, "is missing"),
        ("s.type", {"properties": {}}, "is missing"),
        ("s.minLength", {"type": "object", "minLength": 1}, "leave it out"),
        ("s.maxItems", {"type": "array", "maxItems": 10**9}, "from 0 to 500"),
        ("s.maxLength", {"type": "string", "maxLength": True}, "whole number"),
        ("s.maxLength", {"type": "string", "maxLength": -1}, "whole number"),
        ("s.minimum", {"type": "integer", "minimum": 10**400}, "must be a number"),
        ("s.minimum", {"type": "number", "minimum": "1"}, "must be a number"),
        ("s.minItems", {"type": "array", "minItems": 3, "maxItems": 2}, "above maxItems"),
        ("s.minimum", {"type": "integer", "minimum": 3, "maximum": 2}, "above maximum"),
        (
            "s.exclusiveMinimum",
            {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4},
            "leaves no number below exclusiveMaximum",
        ),
        ("s.minimum", {"type": "number", "minimum": 1, "exclusiveMaximum": 1}, "below exclusiveMaximum"),
        ("s.maximum", {"type": "integer", "minimum": 0, "maximum": 0.7}, "must be a whole number"),
        ("s.enum", {"enum": []}, "1 to 500"),
        ("s.enum", {"enum": [{}]}, "strings, numbers"),
        ("s.enum", {"enum": ["a"], "type": "integer"}, "not of type"),
        ("s.const", {"const": []}, "must be a string"),
        ("s.minLength", {"type": "string", "enum": ["a"], "minLength": 1}, "beside enum"),
        ("s.format", {"type": "string", "format": "regex"}, "must be one of date"),
        ("s.format", {"type": "string", "format": "date", "maxLength": 4}, "leave one out"),
        ("s.required", OBJECT | {"required": ["b"]}, "not among the properties"),
        ("s.required", OBJECT | {"required": "a"}, "list of names"),
        ("s.allOf", {"allOf": [STRING, STRING]}, "one schema"),
        ("s.anyOf", {"anyOf": []}, "1 to 50"),
        ("s.anyOf.0", {"anyOf": [True]}, "must be an object"),
        ("s.properties", OBJECT | {"properties": {str(n): STRING for n in range(101)}}, "at most 100"),
        ("s.properties", {"type": "object", "properties": {"n" * 201: STRING}}, "200 characters"),
        ("s.items.$defs", {"type": "array", "items": {"$defs": {}}}, "at the root"),
        ("s.$ref", {"$ref": "https://example.com/schema"}, "#/$defs/Name"),
        ("s.$ref", {"$ref": "#"}, "#/$defs/Name"),
        ("s.$ref", {"$ref": "#/$defs/A", "$defs": {"A": STRING}, "type": "string"}, "leave those out"),
        ("s", LOOP | {"$ref": "#/$defs/A"}, "refers to itself"),
        ("s", {"$defs": {"A": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"}, "refers to itself"),
        ("s", {"enum": ["x" * 200 + str(n) for n in range(400)]}, f"more than {bounds.SCHEMA} bytes"),
        ("s", {"enum": list(range(3000))}, "more than 2000 values"),
        ("s.maxLength", {"type": "string", "maxLength": 61}, "from 0 to 60"),
        ("s", OBJECT | {"properties": LONG}, "add up to 90"),
        ("s", OBJECT | {"properties": URIS}, "66"),
    ],
)  # fmt: skip
def test_an_unsupported_keyword_is_refused_with_its_place(at: str, schema: Any, says: str) -> None:
    with pytest.raises(GatewayError) as caught:
        schemas.text(schema, "s")
    assert (caught.value.status, caught.value.param) == (400, at), caught.value
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "limits",
    [
        {"minimum": 0, "exclusiveMaximum": 1},
        {"exclusiveMinimum": 0, "maximum": 1},
        {"exclusiveMinimum": 0, "exclusiveMaximum": 2},
        {"minimum": 1, "maximum": 1},
    ],
)
def test_limits_that_leave_one_integer_are_kept(limits: dict[str, int]) -> None:
    assert sent({"type": "integer"} | limits) == {"type": "integer"} | limits


def test_a_deep_schema_is_refused() -> None:
    deep: Any = STRING
    for _ in range(30):
        deep = {"type": "array", "items": deep}
    with pytest.raises(GatewayError, match="levels deep"):
        schemas.text(deep, "s")
