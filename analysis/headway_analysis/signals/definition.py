"""Defines a signal: how it is read at a step, when it is raised, and its texts for people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from headway_analysis.signals.history import History, Job
from headway_api.signals import SignalName

Severity = Literal["critical", "warning", "info"]


class Level(Enum):
    """On which side of its threshold a signal's number is."""

    CLEAR = "clear"
    BETWEEN = "between"
    """Neither over nor clear: the state remains as it is."""
    OVER = "over"


@dataclass(frozen=True)
class Reading:
    """A signal's number at one step."""

    level: Level
    value: float
    threshold: float
    observed: str
    """The observation in words, with its numbers: the first half of the message."""
    low: float | None = None
    """Lower bound of the interval of `value`; None if it has none."""
    high: float | None = None
    """Upper bound of the interval of `value`; None if it has none."""
    sure: bool = False
    """Whether this reading alone raises the signal, if it is over."""


Judge = Callable[[History], Reading | None]
"""Reads a signal at one step. None: too little is known at this step to say anything."""
PATIENCE: Final = 3


@dataclass(frozen=True)
class Signal:
    """One sign that training goes wrong. The texts are for people: docs/signals.md and runbooks have them."""

    name: SignalName
    judge: Judge
    meaning: str
    """What the signal means, in one sentence."""
    number: str
    """How the number is computed: formula and window."""
    threshold: str
    """When the number is over, and when it is clear again."""
    reason: str
    """Why the threshold has this value."""
    source: str
    """Where the threshold comes from: a publication, the practice guide, or the recorded series."""
    advice: str
    """The first thing to change."""
    look_at: tuple[str, ...]
    """Metrics and artifacts that show whether the advice fits, in the order in which to look at them."""
    confirmed_by: str
    """What shows that the change helped."""
    severity: Severity = "warning"
    raise_after: int = PATIENCE
    """How many readings that are over, with no clear reading in between, raise the signal. A single reading
    that is `sure` is enough."""
    clear_after: int = PATIENCE
    """How many clear readings, with no reading that is over in between, clear a raised signal."""
    clock: Literal["step", "validation", "either"] = "step"
    """When the signal is judged. `either`: at validations, or at steps if the job has none."""

    def judged_at(self, job: Job) -> Literal["step", "validation"]:
        """Whether the signal is judged at a job's steps or at its validations."""
        if self.clock == "either":
            return "validation" if job.validates else "step"
        return self.clock
