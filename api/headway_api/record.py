"""What all records that travel between processes have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base of everything that crosses a process boundary."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
