"""Small types that several blocks of `spec` and `status` share."""

import json
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from headway_api.base import SpecModel
from headway_api.bounds import KIB, OutOfBoundsError, nesting
from headway_api.rules import Rule

QUANTITY_PATTERN = r"^(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE][+-]?[0-9]+))?$"
DECIMAL_PATTERN = r"^-?[0-9]+(\.[0-9]+)?$"
MONEY_PATTERN = r"^[0-9]+(\.[0-9]+)?$"
LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"

PRESERVE = {"x-kubernetes-preserve-unknown-fields": True}


def _as_text(value: Any) -> Any:
    """Turn an integer into the text of a quantity. A fraction must be text: "0.5" or 500m for half a CPU."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Quantity = Annotated[
    str,
    BeforeValidator(_as_text),
    Field(pattern=QUANTITY_PATTERN, max_length=32),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": QUANTITY_PATTERN,
            "maxLength": 32,
            "minimum": 0,
        }
    ),
]
Count = Annotated[int, Field(ge=0)]
Word = Annotated[str, Field(max_length=128)]
"""A short text of `status`, such as a name, a reason or a number."""
ResourceMap = Annotated[dict[str, Quantity], Field(max_length=16)]
DECIMAL_LENGTH: Final = 32
"""Maximum characters of a `Decimal`."""
Decimal = Annotated[str, Field(pattern=DECIMAL_PATTERN, max_length=DECIMAL_LENGTH)]
Money = Annotated[str, Field(pattern=MONEY_PATTERN, max_length=20)]
Label = Annotated[str, Field(pattern=LABEL_PATTERN, min_length=1, max_length=63)]
Subdomain = Annotated[str, Field(pattern=SUBDOMAIN_PATTERN, min_length=1, max_length=253)]
Uri = Annotated[str, Field(min_length=1, max_length=1024)]
Argument = Annotated[str, Field(max_length=1024)]
FREE_DEPTH: Final = 16
"""Levels of lists and objects in a field without a schema."""
FREE_VALUES: Final = 4000
FREE_BYTES: Final = 64 * KIB
"""Maximum bytes as JSON. An environment's config becomes a variable of its pods, and Linux allows 128 KiB."""
FREE_KEYS: Final = 256
"""Maximum keys of the outermost object. The API server enforces this limit too."""


def _bounded(value: dict[str, Any]) -> dict[str, Any]:
    """The value, if it is within bounds; otherwise ValueError with what to write instead."""
    try:
        nesting(value, FREE_DEPTH, FREE_VALUES)
    except OutOfBoundsError as error:
        raise ValueError(f"{error}; write it smaller and flatter") from error
    if len(json.dumps(value)) > FREE_BYTES:
        raise ValueError(f"more than {FREE_BYTES} bytes as JSON; write it smaller")
    return value


FreeForm = Annotated[
    dict[str, Any], Field(max_length=FREE_KEYS, json_schema_extra=PRESERVE), AfterValidator(_bounded)
]
PodTemplate = Annotated[
    dict[str, Any], Field(max_length=FREE_KEYS, json_schema_extra=PRESERVE), AfterValidator(_bounded)
]


def uri_scheme(field: str, *schemes: str) -> Rule:
    """The field must be a URI with one of these schemes.

    A field that takes s3:// also takes file://, but only outside a cluster. The API server refuses file:// in
    a CR. The models accept it, so that every process of a job can run on one machine over a folder.
    """
    prefixes = tuple(f"{scheme}://" for scheme in schemes)
    listed = " || ".join(f"self.startsWith('{prefix}')" for prefix in prefixes)
    accepted = (*prefixes, "file://") if "s3" in schemes else prefixes
    return Rule(
        listed,
        f"{field} must start with {' or '.join(prefixes)}",
        lambda value: value is None or value.startswith(accepted),
    )


def at_most(field: str, limit: float) -> Rule:
    """Rule for a maximum that is not an integer. The API server's own message would show it rounded."""
    return Rule(f"self <= {limit}", f"{field} must be at most {limit}", lambda value: value <= limit)


def sampled_as_asked(field: str) -> Rule:
    """The temperature must be one that the servers apply exactly: vLLM replaces values between 0 and 0.01."""
    return Rule(
        "self == 0.0 || self >= 0.01",
        f"{field} must not lie between 0 and 0.01: vLLM would sample with 0.01 instead, and records would "
        "be of another policy; use 0.01 or more",
        lambda value: value == 0 or value >= 0.01,
    )


class Resources(SpecModel):
    """Compute resources of a container, as in a Pod."""

    requests: ResourceMap | None = None
    """What the scheduler sets aside, by resource name (cpu, memory, nvidia.com/gpu).
    Absent: equal to limits."""
    limits: ResourceMap | None = None
    """What the container may use at most, by resource name."""


class SecretRef(SpecModel):
    """A Secret in the job's own namespace."""

    name: Subdomain
    """Name of the Secret."""


class ObjectName(SpecModel):
    """An object in the job's own namespace, by name."""

    name: Subdomain
    """Name of the object."""
