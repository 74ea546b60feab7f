"""JSON schemas for a judge's answer are checked as by a full implementation of JSON Schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_api.bounds import OutOfBoundsError
from headway_coordinator.endpoint.reply import Reply
from headway_coordinator.judges import schema as schema_module
from headway_coordinator.judges.question import PreparedQuestion, UnusableAnswerError, answer, fits
from headway_coordinator.judges.schema import InvalidSchemaError, mismatch, require
from headway_coordinator.trajectory.calls import Parsed

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-3, 3) | st.text("ab", max_size=3)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
NUMBERS = st.integers(-3, 3) | st.floats(-3, 3)
TYPES = st.sampled_from(["object", "array", "string", "boolean", "null", "number", "integer"])


def schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True),
            "enum": st.lists(SCALARS, min_size=1, max_size=3),
            "const": SCALARS,
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
            "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
            "additionalProperties": st.booleans() | inner,
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "minimum": NUMBERS,
            "maximum": NUMBERS,
            "exclusiveMinimum": NUMBERS,
            "exclusiveMaximum": NUMBERS,
            "minLength": st.integers(0, 3),
            "maxLength": st.integers(0, 3),
            "minItems": st.integers(0, 3),
            "maxItems": st.integers(0, 3),
            "description": st.just("words"),
        },
    )


SCHEMAS = st.recursive(st.booleans() | schemas(st.just({})), schemas, max_leaves=4)


@given(VALUES, SCHEMAS)
def test_a_schema_is_judged_as_by_full_json_schema(value: Any, schema: Any) -> None:
    require(schema)
    expected = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert (mismatch(value, schema) == "") is expected, mismatch(value, schema)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"$ref": "http://10.0.0.1/secret"}, "schema.$ref is not supported"),
        ({"pattern": "(a+)+$"}, "schema.pattern is not supported; the keywords are type, enum"),
        ({"properties": {"a": {"format": "uri"}}}, "schema.properties.a.format is not supported"),
        ({"items": {"not": {}}}, "schema.items.not is not supported"),
        ({"type": "float"}, "schema.type must be one of object, array"),
        ({"type": [["number"]]}, "schema.type must be one of"),
        ({"minimum": "1"}, "schema.minimum must be a number"),
        ({"minimum": float("inf")}, "schema.minimum must be a number"),
        ({"required": "grade"}, "schema.required must be a list"),
        ({"required": [1]}, "schema.required must be a list of names"),
        ({"enum": "ab"}, "schema.enum must be a list"),
        ({"properties": []}, "schema.properties must be an object"),
        ({"anyOf": {"type": "number"}}, "schema.anyOf must be a list"),
        ({"items": 3}, "schema.items must be an object"),
        ("number", "schema must be an object"),
        ({"enum": [0] * 5000}, "more than 2000 values"),
    ],
)
def test_an_unsupported_schema_is_refused_with_its_place(schema: Any, says: str) -> None:
    with pytest.raises(InvalidSchemaError) as caught:
        require(schema)
    assert says in str(caught.value)


def test_a_schema_without_end_is_refused() -> None:
    deep: Any = {}
    for _ in range(2_000):
        deep = {"items": deep}
    with pytest.raises(InvalidSchemaError, match="nested more than 16 levels"):
        require(deep)


@pytest.mark.parametrize(
    ("value", "schema", "says"),
    [
        (
            {"grade": "high"},
            {"properties": {"grade": {"type": "number"}}},
            'answer.grade is not of type number: "high"',
        ),
        ({}, {"required": ["grade"]}, 'the answer lacks "grade"'),
        ([1, 2, 30], {"items": {"maximum": 10}}, "the answer[2] breaks maximum: 10: 30"),
        ("c", {"enum": ["a", "b"]}, 'the answer is not one of ["a", "b"]: "c"'),
        (True, {"const": 1}, "the answer is not 1: true"),
        (10**400, {"type": "number"}, "the answer is not of type number"),
        ({"a": 1}, {"additionalProperties": False}, "the answer.a must not be there"),
    ],
)
def test_a_mismatch_is_reported_with_its_place(value: Any, schema: Any, says: str) -> None:
    require(schema)
    found = mismatch(value, schema)
    assert says in found
    assert len(found) < 400


MANY = {"items": {"anyOf": [{"const": number} for number in range(900)]}}
"""A schema that takes nearly a million comparisons for a list of 1,000 values."""


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ([899] * 1_000, MANY),
        ([899] * 1_000, {"items": {"enum": list(range(900))}}),
        ([{}] * 1_000, {"anyOf": [{"items": {"type": ["array"] * 900 + ["object"]}}]}),
        ([{"a": 1}] * 1_000, {"items": {"required": ["a"] * 900}}),
    ],
    ids=["anyOf", "enum", "type", "required"],
)
def test_a_value_is_checked_by_a_schema_in_bounded_steps(value: Any, schema: Any) -> None:
    require(schema)
    question = PreparedQuestion([], schema, "")
    with pytest.raises(OutOfBoundsError, match="more than 200000 comparisons"):
        mismatch(value, schema)
    with pytest.raises(
        UnusableAnswerError, match=r"cannot be compared with the schema: more than 200000 .*; ask for fewer"
    ):
        answer(Reply(Parsed(json.dumps(value)), "stop"), question)
    assert not fits(value, question)


def test_only_comparisons_that_are_made_count_as_steps() -> None:
    """The first value fits no branch, so the rest is not compared."""
    assert mismatch([-1, *[899] * 1_000], {"anyOf": [MANY, {}]}) == ""


def test_a_mismatching_value_is_formatted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    whole = schema_module._shown
    monkeypatch.setattr(schema_module, "_shown", lambda value: shown.append(value) or whole(value))
    value = ["x" * 100_000]
    message = mismatch(value, {"anyOf": [{"type": "number"}] * 100})
    assert shown == [value]
    assert message.startswith('the answer matches nothing in anyOf: ["xxx')
    assert len(message) < 200
