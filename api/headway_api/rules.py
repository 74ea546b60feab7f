"""A rule on a user's input, written once and enforced in two places.

The API server evaluates a rule's CEL expression at `kubectl apply`. The pydantic model evaluates its Python
form offline (in the operator, tests, editors). Both give the same message. Tests ensure that both forms
agree: they evaluate both on generated objects, and send a table of inputs to a real API server.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

VALIDATIONS = "x-kubernetes-validations"
IMMUTABLE = "x-headway-immutable"
"""Marks, for the CRD generator, the properties of a model that get a transition rule."""
Scalar = str | int | float | bool


@dataclass(frozen=True)
class Rule:
    """A condition on a value, and what to tell the user if it is false.

    Put it in a field's `Annotated[...]`, where `self` is that field's value, or in a model's `validations`,
    where `self` is the whole object. `field` (camelCase) is the property that a model's rule blames.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool]
    field: str = ""

    def validation(self) -> dict[str, str]:
        """The entry of `x-kubernetes-validations`."""
        entry = {"rule": self.cel, "message": self.message}
        return entry | {"fieldPath": f".{self.field}"} if self.field else entry

    def check(self, value: Any) -> Any:
        if not self.holds(value):
            raise ValueError(self.message)
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        json_schema = dict(handler(schema))
        json_schema[VALIDATIONS] = [*json_schema.get(VALIDATIONS, []), self.validation()]
        return json_schema


@dataclass(frozen=True)
class Keyed:
    """A rule in a list's `Annotated[...]` that no two items have the same value of one field.

    The API server enforces this for a list of type map, with its own message.
    """

    key: str
    """The field, whose name is the same in camelCase and snake_case."""

    def check(self, items: Any) -> Any:
        found = [getattr(item, self.key) for item in items]
        twice = [value for index, value in enumerate(found) if value in found[:index]]
        if twice:
            raise ValueError(f"two items have the {self.key} {twice[0]!r}; change one of them")
        return items

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        listed = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [self.key]}
        return dict(handler(schema)) | listed


def frozen_while_running(field: str) -> Rule:
    """Rule that this field of `spec` may change only while the job is suspended, because its processes read
    the field when they start.

    The Python form accepts every object, because only the API server knows the earlier object.
    """
    return Rule(
        f"self.suspend || oldSelf.suspend || self.{field} == oldSelf.{field}",
        f"spec.{field} may change only while the job is suspended; set spec.suspend: true first",
        lambda value: True,
        field.partition(".")[0],
    )


def cel_literal(value: Scalar) -> str:
    """A Python scalar as CEL writes it. A float keeps its decimal point, because CEL distinguishes 0 and
    0.0."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return repr(value)
