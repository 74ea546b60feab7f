"""Defines a signal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from headway_analysis.signals.history import History, Job
from headway_api.signals import SignalName

Severity = Literal["critical", "warning", "info"]


class Level(Enum):
    """The level of a number, compared with the threshold."""

    CLEAR = "clear"
    BETWEEN = "between"
    """Neither: the state remains as it is."""
    OVER = "over"


@dataclass(frozen=True)
class Reading:
    """A signal's number at one step."""

    level: Level
    value: float
    threshold: float
    observed: str
    """What was seen, with the numbers: the first half of the message."""
    low: float | None = None
    """Ends of the 95 % interval of `value`, if it has one."""
    high: float | None = None
    sure: bool = False
    """Whether a reading that is over raises the signal alone."""


Judge = Callable[[History], Reading | None]
"""None: too little is known at this step to say anything."""
PATIENCE: Final = 3


@dataclass(frozen=True)
class Signal:
    """One sign that training goes wrong. Everything but `judge` is for people."""

    name: SignalName
    judge: Judge
    meaning: str
    """What the signal means, in one sentence."""
    number: str
    """How the number is computed: formula and window."""
    threshold: str
    """When the number is over, and when it is clear again."""
    reason: str
    """Why the threshold is where it is."""
    source: str
    """Where the threshold comes from: a publication, the practice guide, or the recorded series."""
    advice: str
    """The first thing to change."""
    look_at: tuple[str, ...]
    """What tells whether the advice fits: metrics and artifacts to look at, in order."""
    confirmed_by: str
    """What shows that the change helped."""
    severity: Severity = "warning"
    raise_after: int = PATIENCE
    """Readings that are over, without a clear one between them, before the state is Raised. One that is sure
    counts for all of them."""
    clear_after: int = PATIENCE
    """Readings that are clear, without one that is over between them, before the state is Clear again."""
    clock: Literal["step", "validation", "either"] = "step"
    """When the signal is judged. `either`: at validations, or at steps if the job has none."""

    def judged_at(self, job: Job) -> Literal["step", "validation"]:
        """Whether the signal is judged at a job's steps or at its validations."""
        if self.clock == "either":
            return "validation" if job.validates else "step"
        return self.clock
