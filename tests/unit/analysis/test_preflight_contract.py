"""Contracts are checked without a search in long texts, and in a bounded number of steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headway_analysis.preflight.contract import read

SEARCH = "^b"
"""A pattern that TEXT does not match. Another pattern could search for hours."""
TEXT = {"a": "a"}


HERE = {"$ref": "#/components/schemas/Case"}
ANSWER = {"200": {"description": "it", "content": {"application/json": {"schema": HERE}}}}
DOCUMENTS: dict[str, dict[str, Any]] = {
    "OpenAPI": {"paths": {"/cases": {"get": {"operationId": "get_case", "responses": ANSWER}}}},
    "MCP": {"tools": [{"name": "get_case", "outputSchema": HERE}]},
}


def objection_to(answer: Any, schema: Mapping[str, Any], kind: str = "OpenAPI") -> str | None:
    contract = read({**DOCUMENTS[kind], "components": {"schemas": {"Case": schema}}})
    assert contract is not None
    operation = contract.operation("get_case")
    assert operation is not None
    assert operation.answer is not None
    return contract.objection(operation, answer)


@pytest.mark.parametrize(
    "schema",
    [
        {"additionalProperties": {"pattern": SEARCH}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "additionalProperties": {"pattern": SEARCH}},
        {"patternProperties": {"^a": False}},
        {"patternProperties": {SEARCH: True}, "additionalProperties": False},
        {"allOf": [{"patternProperties": {SEARCH: True}}], "unevaluatedProperties": False},
        {"propertyNames": {"pattern": SEARCH}},
        {"$ref": "#/components/schemas/Case/properties", "properties": {"patternProperties": {"^a": False}}},
        {
            "propertyNames": {"$ref": "#/components/schemas/Case/properties"},
            "properties": {"pattern": SEARCH},
        },
    ],
)
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_a_contracts_patterns_search_no_text(kind: str, schema: Mapping[str, Any]) -> None:
    assert objection_to(TEXT, schema, kind) is None


def test_a_parameter_called_pattern_must_match_its_schema() -> None:
    schema = {"properties": {"pattern": {"type": "integer"}, "uniqueItems": {"type": "integer"}}}
    for name in schema["properties"]:
        assert str(objection_to({name: "text"}, schema)).startswith(f"{name}: ")


@pytest.mark.timeout(60)
def test_a_check_of_an_exponential_contract_is_given_up() -> None:
    doubled = {
        f"a{n}": {"allOf": [{"$ref": f"#/components/schemas/Case/$defs/a{n + 1}"}] * 2} for n in range(40)
    }
    schema = {"$defs": doubled | {"a40": {"type": "object"}}, "$ref": "#/components/schemas/Case/$defs/a0"}
    assert objection_to({}, schema) is None


def test_a_long_answer_must_follow_the_contract() -> None:
    schema = {"items": {"properties": {"n": {"type": "integer"}}, "required": ["n"]}}
    rows: list[Any] = [{"n": 1, "text": "x" * 100} for _ in range(300)]
    assert objection_to(rows, schema) is None
    assert str(objection_to([*rows, {}], schema)).startswith("300: ")
