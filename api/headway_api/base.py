"""Base classes of the custom resources' models: camelCase in JSON, snake_case in Python."""

from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from headway_api.rules import IMMUTABLE, VALIDATIONS, Rule


class Model(BaseModel):
    """Base of all models: it refuses unknown fields, NaN and infinity, and instances that break a rule of
    `validations`."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    validations: ClassVar[tuple[Rule, ...]] = ()

    def as_object(self) -> dict[str, Any]:
        """The JSON object Kubernetes stores: camelCase names, absent instead of null."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        broken = [rule.message for rule in self.validations if not rule.holds(self)]
        if broken:
            raise ValueError("; ".join(broken))
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        json_schema = handler(schema)
        if cls.validations:
            target = handler.resolve_ref_schema(json_schema)
            target[VALIDATIONS] = [rule.validation() for rule in cls.validations]
        return json_schema


class SpecModel(Model):
    """A block of `spec`: frozen, because only the user writes it.

    `mutable` names the fields that a user may change; every other field is immutable. None: the block that
    contains this one decides.
    """

    model_config = ConfigDict(frozen=True)

    mutable: ClassVar[frozenset[str] | None] = None

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        """Treat null as the API server does: the field is absent, so it gets its default or is reported
        missing."""
        if not isinstance(given, dict) or None not in given.values():
            return given
        known = {*cls.model_fields, *(field.alias for field in cls.model_fields.values())}
        return {name: value for name, value in given.items() if value is not None or name not in known}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        json_schema = super().__get_pydantic_json_schema__(schema, handler)
        if cls.mutable is not None:
            target = handler.resolve_ref_schema(json_schema)
            target[IMMUTABLE] = [
                field.alias for name, field in cls.model_fields.items() if name not in cls.mutable
            ]
        return json_schema


class StatusModel(Model):
    """A block of `status`. Unknown fields are ignored, so that an older reader accepts a newer writer's
    status."""

    model_config = ConfigDict(extra="ignore")

    def as_object(self) -> dict[str, Any]:
        """The JSON object without empty lists, because a server-side apply owns every field that it
        mentions."""
        pruned = _without_empty_lists(super().as_object())
        assert isinstance(pruned, dict)
        return pruned


def _without_empty_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_empty_lists(item) for key, item in value.items() if item != []}
    if isinstance(value, list):
        return [_without_empty_lists(item) for item in value]
    return value
