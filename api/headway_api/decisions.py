"""Decisions about a running job in the artifact store: which remedy, why, and its result.

    remedies/000001.json        a `Decision`, written before the learner receives it
    remedies/000001-kept.json   a `Kept`, if the change stays after its watch
    remedies/orders/<hash>.json a `RefusedOrder`: a person's order that was refused

Decisions are numbered from 1, and one step carries out each decision. The report of that step says whether
the learner made the change or refused it. The state of all remedies is a function of these files and reports
(`headway_analysis.remedies.course`), so a restarted coordinator computes the same state.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from headway_api.in_force import Directive, InForce
from headway_api.record import Record
from headway_api.signals import SignalName


class Measured(Record):
    """What was measured of a job at one moment, for later comparison."""

    reward: float | None = None
    """Mean training reward of the last steps, each with the same weight. None before the first step."""
    low: float | None = None
    """Lower bound of its 95 % interval; `high` is the upper bound."""
    high: float | None = None
    steps: int = Field(default=0, ge=0)
    """Number of steps in the mean."""
    validated: int | None = Field(default=None, ge=0)
    """Step of the newest validation."""
    score: float | None = None
    """External score of that validation."""


class Decision(Record):
    """A change that the learner makes in a step instead of training a batch."""

    number: int = Field(ge=1)
    """Counted from 1; refused decisions count too."""
    step: int = Field(ge=1)
    """The step that makes the change."""
    directive: Directive
    in_force: InForce
    """The settings in force after the change."""
    undoes: int | None = Field(default=None, ge=1)
    """Number of the earlier decision that this one undoes."""
    signal: SignalName | None = None
    """The signal that caused the decision; None if a person ordered it."""
    order: str | None = None
    """Text of the person's order."""
    why: str
    """The reason, for people."""
    before: Measured = Measured()

    @model_validator(mode="after")
    def _is_numbered_once(self) -> Self:
        if self.in_force.number != self.number:
            raise ValueError(f"decision {self.number} brings what has the number {self.in_force.number}")
        if self.directive.undo != (self.undoes is not None):
            raise ValueError("undoes must be set if the directive undoes a remedy, and only then")
        return self


class Kept(Record):
    """A remedy's watch is over, and its change stays."""

    number: int = Field(ge=1)
    """Number of the decision."""
    step: int = Field(ge=1)
    """The last step of the watch."""
    why: str
    after: Measured = Measured()


class RefusedOrder(Record):
    """An order that was not carried out. The same text is not retried."""

    order: str
    step: int = Field(ge=0)
    """Number of steps taken when the order was refused."""
    why: str
