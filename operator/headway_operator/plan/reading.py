"""What a job asks for, as far as it can be read. Pure.

The API server holds a spec to the rules it had when the job was applied; this version may know stricter ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from headway_api.spec.metadata import Metadata
from headway_api.spec.training import RLTrainingJob, RLTrainingJobSpec
from headway_api.status import RLTrainingJobStatus
from headway_operator.plan.context import Json


@dataclass(frozen=True)
class Refusal:
    """A spec that cannot be run: each message names the field and what to write instead."""

    messages: tuple[str, ...]


def parse(raw: Json) -> RLTrainingJob | Refusal:
    """The job as the API server holds it, or what is wrong with it."""
    try:
        return RLTrainingJob.model_validate(raw)
    except ValidationError as invalid:
        return Refusal(tuple(_sentence(error) for error in invalid.errors()))


def _sentence(error: object) -> str:
    assert isinstance(error, dict)
    text = str(error["msg"]).removeprefix("Value error, ")
    path = ".".join(str(part) for part in error["loc"])
    return text if not path or path in text else f"{path}: {text}"


def salvage(raw: Json) -> RLTrainingJob:
    """A job that was refused, good for ending what runs of it and for nothing else.

    A block of its spec that cannot be read has its default, and one that has none is missing: so `suspend`,
    deadlines and counts hold whatever is wrong elsewhere.
    """
    blocks = {}
    for name, field in RLTrainingJobSpec.model_fields.items():
        try:
            blocks[name] = _reader(name).validate_python(raw["spec"][field.alias or name])
        except (KeyError, ValidationError):
            continue
    return RLTrainingJob.model_construct(
        metadata=Metadata.model_validate(raw["metadata"]),
        spec=RLTrainingJobSpec.model_construct(**blocks),
        status=RLTrainingJobStatus.model_validate(raw.get("status", {})),
    )


@cache
def _reader(name: str) -> TypeAdapter[Any]:
    field = RLTrainingJobSpec.model_fields[name]
    kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    return TypeAdapter(kind)
