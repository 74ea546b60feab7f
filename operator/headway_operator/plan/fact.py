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
    """What happened, with its numbers."""
    warning: bool = False
    at: datetime | None = None
    """When it happened; None if the status does not say."""
    not_before: datetime | None = None
    """The earliest time at which it can have happened, if the status does not give the time."""
    order: str | None = None
    """Prefix of keys that end with a step. Facts with this prefix happen in the order of their steps."""

    @property
    def series(self) -> str:
        """The key without its last part. Facts of one series may recur, at a later time or step."""
        return self.key.rpartition(".")[0]

    def follows(self, key: str) -> bool:
        """Whether the fact with this key has the same `order`, and happened no later than this fact."""
        if self.order is None or not key.startswith(self.order):
            return False
        step, own = key.rpartition(".")[2], self.key.rpartition(".")[2]
        return step.isdecimal() and int(step) <= int(own)


def tenth(step: int, maximum: int | None) -> int:
    """The tenth of a job's steps that contains a step; 0 for a job without an end.

    Facts that may occur at any step are recorded once in each tenth.
    """
    return 10 * min(step, maximum) // maximum if maximum else 0
