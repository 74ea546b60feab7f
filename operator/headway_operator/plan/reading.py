"""Parses a stored job, as far as this version can read it. Pure.

The API server checked the spec by the rules that were installed when the job was applied. This version may
have stricter rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final

from pydantic import BaseModel, TypeAdapter, ValidationError

from headway_api.document import Json
from headway_api.mistakes import mistakes
from headway_api.spec.evaluation import RLEvalJob
from headway_api.spec.metadata import Metadata
from headway_api.spec.training import RLTrainingJob
from headway_api.status import RLEvalJobStatus, RLTrainingJobStatus
from headway_operator.config import DEFAULT_MANAGER
from headway_operator.plan.context import Job, JobStatus

IDENTITY: Final = ("name", "namespace", "uid", "generation", "creationTimestamp")
"""Fields of metadata that every job needs."""


def manager_of(raw: Json) -> str:
    """The manager of a stored job."""
    manager = raw["spec"].get("managedBy", DEFAULT_MANAGER)
    return manager if isinstance(manager, str) else DEFAULT_MANAGER


@dataclass(frozen=True)
class SpecRefusal:
    """A spec that cannot run: each message names the field and what to write instead."""

    messages: tuple[str, ...]


def parse(model: type[RLTrainingJob] | type[RLEvalJob], raw: Json) -> Job | SpecRefusal:
    """The job stored in the API server, or what is wrong with it."""
    try:
        return model.model_validate(raw)
    except ValidationError:
        pass
    try:
        readable = _readable(_part(model, "status"), raw.get("status") or {})
        return model.model_validate({**raw, "status": readable})
    except ValidationError as invalid:
        return SpecRefusal(mistakes(invalid, model))


def parse_status(model: type[RLTrainingJob] | type[RLEvalJob], raw: Json) -> JobStatus:
    """The status stored in the API server, without the blocks that this version cannot read."""
    kind, stored = _part(model, "status"), raw.get("status") or {}
    try:
        status = kind.model_validate(stored)
    except ValidationError:
        status = kind.model_validate(_readable(kind, stored))
    assert isinstance(status, RLTrainingJobStatus | RLEvalJobStatus)
    return status


def training_status(raw: Json) -> RLTrainingJobStatus:
    """The status of another training job of the namespace."""
    status = parse_status(RLTrainingJob, raw)
    assert isinstance(status, RLTrainingJobStatus)
    return status


def _readable(kind: type[BaseModel], stored: Json) -> Json:
    """The blocks of a status that are readable on their own."""
    found = {}
    for key, value in stored.items():
        try:
            kind.model_validate({key: value})
        except ValidationError:
            continue
        found[key] = value
    return found


def _part(model: type[RLTrainingJob] | type[RLEvalJob], name: str) -> type[BaseModel]:
    part = model.model_fields[name].annotation
    assert isinstance(part, type)
    return part


def read_partly(model: type[RLTrainingJob] | type[RLEvalJob], raw: Json) -> Job:
    """The readable part of a refused job, so that the operator can end what the job has running.

    An unreadable block of its spec gets its default, or is missing if it has none. So `suspend`, deadlines
    and counts apply even if other blocks are wrong.
    """
    blocks = {}
    spec = _part(model, "spec")
    for name, field in spec.model_fields.items():
        try:
            blocks[name] = _reader(spec, name).validate_python(raw["spec"][field.alias or name])
        except (KeyError, ValidationError):
            continue
    parts: Json = {
        "metadata": _metadata(raw["metadata"]),
        "spec": spec.model_construct(**blocks),
        "status": parse_status(model, raw),
    }
    return model.model_construct(**parts)


def _metadata(stored: Json) -> Metadata:
    """The whole metadata, or only its `IDENTITY`."""
    try:
        return Metadata.model_validate(stored)
    except ValidationError:
        return Metadata.model_validate({key: stored[key] for key in IDENTITY if key in stored})


@cache
def _reader(spec: type[BaseModel], name: str) -> TypeAdapter[Any]:
    field = spec.model_fields[name]
    kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    return TypeAdapter(kind)
