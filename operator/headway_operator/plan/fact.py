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
    """The earliest time at which it can have happened, if the status does not say more."""
    order: str | None = None
    """Prefix of the keys of facts that happen in the order of the steps that end their keys."""

    @property
    def series(self) -> str:
        """The key without its last part. Facts of one series may recur, at a later time or step."""
        return self.key.rpartition(".")[0]

    def follows(self, key: str) -> bool:
        """Whether the key's fact, of the same order, happened no later than this one."""
        if self.order is None or not key.startswith(self.order):
            return False
        step, own = key.rpartition(".")[2], self.key.rpartition(".")[2]
        return step.isdecimal() and int(step) <= int(own)


def tenth(step: int, most: int | None) -> int:
    """The tenth of a job's steps that contains a step; 0 for a job without an end.

    Facts that may occur at any step are recorded once in each tenth.
    """
    return 10 * min(step, most) // most if most else 0
