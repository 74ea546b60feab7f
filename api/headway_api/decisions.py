"""Decisions about a running job in the artifact store: which remedy, why, and its result.

    remedies/000001.json        a `Decision`, written before the learner receives it
    remedies/000001-kept.json   a `Kept`, if the change stays after its watch
    remedies/orders/<hash>.json a `RefusedOrder`: a person's order that was refused

A decision's number counts the decisions so far, and one step carries it out. The report of that step says
whether the learner did it or refused it. The result is a function of all of these together
(`headway_analysis.remedies.course`), so a restarted coordinator reads them and knows the same.
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
    """A change that takes the place of a batch."""

    number: int = Field(ge=1)
    """Counted from 1; refused ones count too."""
    step: int = Field(ge=1)
    """The step that makes the change."""
    directive: Directive
    in_force: InForce
    """What is in force after it."""
    undoes: int | None = Field(default=None, ge=1)
    """Number of the decision that it undoes."""
    signal: SignalName | None = None
    """The signal that it acts on; None if a person ordered it."""
    order: str | None = None
    """What the person wrote."""
    why: str
    """For people."""
    before: Measured = Measured()

    @model_validator(mode="after")
    def _is_numbered_once(self) -> Self:
        if self.in_force.number != self.number:
            raise ValueError(f"decision {self.number} brings what has the number {self.in_force.number}")
        if self.directive.undo != (self.undoes is not None):
            raise ValueError("undoes must be set if the directive undoes a remedy, and only then")
        return self


class Kept(Record):
    """A remedy's watch is over, and it stays."""

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
    """Steps taken by then."""
    why: str
