"""One thing that has happened to a job. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Fact:
    """One thing that has happened."""

    key: str
    """What happened and when, in lower case: `stalled.1793534400`."""
    reason: str
    """What happened, in one word."""
    message: str
    """What happened, with its figures."""
    warning: bool = False
    at: datetime | None = None
    """When it happened. None: the status does not say."""
    not_before: datetime | None = None
    """When it can have happened at the earliest, where the status does not say more."""

    @property
    def series(self) -> str:
        """The key without its last part: what may happen again, later or further on."""
        return self.key.rpartition(".")[0]


def tenth(step: int, most: int | None) -> int:
    """The tenth of a job's steps that a step is in; 0 of a job without an end. What may come at any step is
    told once in each tenth."""
    return 10 * min(step, most) // most if most else 0
