"""The base of all records that travel between processes."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

from headway_api.bounds import shortened


class Record(BaseModel):
    """Base of everything that crosses a process boundary."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def explained(error: ValidationError) -> str:
    """What is wrong with a value from outside: its first faulty field, in pydantic's words. pydantic's own
    message would repeat the whole value."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = ".".join(shortened(str(part), 60) for part in first["loc"][:6])
    return f"{field or 'it'}: {shortened(first['msg'], 200)}"
