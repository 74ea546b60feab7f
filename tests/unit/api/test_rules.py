"""A rule has two forms, one in the schema and one in the model, which agree."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import Field, ValidationError

from headway_api.base import SpecModel
from headway_api.rules import VALIDATIONS, Rule, cel_literal


class Block(SpecModel):
    """A block with one field of each kind."""

    validations = (
        Rule("self.low < self.high", "low must be below high", lambda self: self.low < self.high, "low"),
    )

    low: int = 0
    high: int = 1
    weight: Annotated[
        float, Field(ge=0), Rule("self != 0.5", "weight must not be 0.5", lambda value: value != 0.5)
    ] = 0.0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"low": 1}, "low must be below high"),
        ({"weight": 0.5}, "weight must not be 0.5"),
    ],
)
def test_the_model_refuses_a_broken_rule(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Block.model_validate(given)


def test_the_model_accepts_a_fulfilled_rule() -> None:
    Block.model_validate({"low": 0, "high": 5, "weight": 0})


def test_the_schema_has_the_same_rules() -> None:
    schema = Block.model_json_schema()
    assert schema[VALIDATIONS] == [
        {"rule": "self.low < self.high", "message": "low must be below high", "fieldPath": ".low"}
    ]
    rules = {
        name: field[VALIDATIONS][0]["rule"]
        for name, field in schema["properties"].items()
        if VALIDATIONS in field
    }
    assert rules == {"weight": "self != 0.5"}


def test_a_broken_bound_comes_before_a_broken_rule() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 0") as refused:
        Block.model_validate({"weight": -1})
    assert refused.value.error_count() == 1


@pytest.mark.parametrize(
    ("value", "text"), [(1, "1"), (0.0, "0.0"), (True, "true"), ("it's", r"'it\'s'"), ("a\\b", r"'a\\b'")]
)
def test_a_value_becomes_a_literal_of_cel(value: Any, text: str) -> None:
    assert cel_literal(value) == text
