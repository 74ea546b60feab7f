"""What a job asks for, as far as it can be read. Pure.

The API server holds a spec to the rules it had when the job was applied; this version may know stricter ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from headway_api.spec.evaluation import RLEvalJob
from headway_api.spec.metadata import Metadata
from headway_api.spec.training import RLTrainingJob
from headway_operator.config import DEFAULT_MANAGER
from headway_operator.plan.context import Job, JobStatus, Json


def manager_of(raw: Json) -> str:
    """Whose job this is, as it is stored."""
    manager: str = raw["spec"].get("managedBy", DEFAULT_MANAGER)
    return manager


@dataclass(frozen=True)
class Refusal:
    """A spec that cannot be run: each message names the field and what to write instead."""

    messages: tuple[str, ...]


def parse(model: type[RLTrainingJob] | type[RLEvalJob], raw: Json) -> Job | Refusal:
    """The job as the API server holds it, or what is wrong with it."""
    try:
        return model.model_validate(raw)
    except ValidationError as invalid:
        return Refusal(tuple(_sentence(error) for error in invalid.errors()))


def _sentence(error: object) -> str:
    assert isinstance(error, dict)
    text = str(error["msg"]).removeprefix("Value error, ")
    path = ".".join(str(part) for part in error["loc"])
    return text if not path or path in text else f"{path}: {text}"


def parse_status(model: type[RLTrainingJob] | type[RLEvalJob], raw: Json) -> JobStatus:
    """The status as the API server holds it."""
    status = _part(model, "status").model_validate(raw.get("status", {}))
    assert isinstance(status, JobStatus)
    return status


def _part(model: type[RLTrainingJob] | type[RLEvalJob], name: str) -> type[BaseModel]:
    part = model.model_fields[name].annotation
    assert isinstance(part, type)
    return part


def salvage(model: type[RLTrainingJob] | type[RLEvalJob], raw: Json) -> Job:
    """A job that was refused, good for ending what runs of it and for nothing else.

    A block of its spec that cannot be read has its default, and one that has none is missing: so `suspend`,
    deadlines and counts hold whatever is wrong elsewhere.
    """
    blocks = {}
    spec = _part(model, "spec")
    for name, field in spec.model_fields.items():
        try:
            blocks[name] = _reader(spec, name).validate_python(raw["spec"][field.alias or name])
        except (KeyError, ValidationError):
            continue
    parts: Json = {
        "metadata": Metadata.model_validate(raw["metadata"]),
        "spec": spec.model_construct(**blocks),
        "status": parse_status(model, raw),
    }
    return model.model_construct(**parts)


@cache
def _reader(spec: type[BaseModel], name: str) -> TypeAdapter[Any]:
    field = spec.model_fields[name]
    kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    return TypeAdapter(kind)
