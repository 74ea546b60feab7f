"""What was decided about a running job: which remedy, why, and what came of it, in the artifact store.

    remedies/000001.json        a `Decision`, written before the learner hears of it
    remedies/000001-kept.json   a `Kept`, where its watch ended well
    remedies/orders/<hash>.json a `RefusedOrder`: what a person ordered and did not get

A decision is numbered by how many there were, and made as one step. Whether it was carried out, or the
learner refused it, is in the report of that step. What became of it is a function of all of these together
(`headway_analysis.remedies.course`), so a restart reads them and knows as much.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from headway_api.in_force import Directive, InForce
from headway_api.record import Record
from headway_api.signals import SignalName


class Measured(Record):
    """How a job did at a moment, to hold it against later."""

    reward: float | None = None
    """Mean training reward of the last steps, each with the same weight; None before there is one."""
    low: float | None = None
    """Ends of its 95 % interval."""
    high: float | None = None
    steps: int = Field(default=0, ge=0)
    """Steps that it is the mean of."""
    validated: int | None = Field(default=None, ge=0)
    """Step of the newest validation."""
    score: float | None = None
    """Its external score."""


class Decision(Record):
    """A change, in the place of a batch."""

    number: int = Field(ge=1)
    """The first is 1; refused ones count too."""
    step: int = Field(ge=1)
    """The step it is made as."""
    directive: Directive
    in_force: InForce
    """What holds once it is done."""
    undoes: int | None = Field(default=None, ge=1)
    """Number of the decision that it takes back."""
    signal: SignalName | None = None
    """The sign of collapse that it is meant against; None where a person ordered it."""
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
            raise ValueError("what takes a remedy back says which one")
        return self


class Kept(Record):
    """A remedy's watch is over, and it stays."""

    number: int = Field(ge=1)
    """Of the decision."""
    step: int = Field(ge=1)
    """The last step that was looked at."""
    why: str
    after: Measured = Measured()


class RefusedOrder(Record):
    """An order that was not carried out: the same words are not tried again."""

    order: str
    step: int = Field(ge=0)
    """Steps taken by then."""
    why: str
