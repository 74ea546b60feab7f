"""Small types that several blocks of `spec` and `status` share."""

from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, WithJsonSchema

from headway_api.base import SpecModel
from headway_api.rules import Rule

QUANTITY_PATTERN = r"^(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE][+-]?[0-9]+))?$"
DECIMAL_PATTERN = r"^-?[0-9]+(\.[0-9]+)?$"
MONEY_PATTERN = r"^[0-9]+(\.[0-9]+)?$"
LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"

PRESERVE = {"x-kubernetes-preserve-unknown-fields": True}


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


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
        }
    ),
]
ResourceMap = Annotated[dict[str, Quantity], Field(max_length=16)]
DECIMAL_LENGTH: Final = 32
"""Most characters of a `Decimal`."""
Decimal = Annotated[str, Field(pattern=DECIMAL_PATTERN, max_length=DECIMAL_LENGTH)]
Money = Annotated[str, Field(pattern=MONEY_PATTERN, max_length=20)]
Label = Annotated[str, Field(pattern=LABEL_PATTERN, min_length=1, max_length=63)]
Subdomain = Annotated[str, Field(pattern=SUBDOMAIN_PATTERN, min_length=1, max_length=253)]
Uri = Annotated[str, Field(min_length=1, max_length=1024)]
Argument = Annotated[str, Field(max_length=1024)]
FreeForm = Annotated[dict[str, Any], Field(json_schema_extra=PRESERVE)]
PodTemplate = Annotated[dict[str, Any], Field(json_schema_extra=PRESERVE)]


def uri_scheme(field: str, *schemes: str) -> Rule:
    """The field holds a URI with one of these schemes.

    Where s3:// may stand, file:// may too, but only outside a cluster: the API server refuses it in a CR,
    the models take it, so that every process of a job can be run on one machine over a folder.
    """
    prefixes = tuple(f"{scheme}://" for scheme in schemes)
    listed = " || ".join(f"self.startsWith('{prefix}')" for prefix in prefixes)
    accepted = (*prefixes, "file://") if "s3" in schemes else prefixes
    return Rule(
        listed,
        f"{field} must start with {' or '.join(prefixes)}",
        lambda value: value is None or value.startswith(accepted),
    )


def sampled_as_asked(field: str) -> Rule:
    """The temperature is one that the servers sample with."""
    return Rule(
        "self == 0.0 || self >= 0.01",
        f"{field} must not lie between 0 and 0.01: vLLM would sample with 0.01 instead, and what is recorded "
        "would be of another policy; use 0.01 or more",
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
