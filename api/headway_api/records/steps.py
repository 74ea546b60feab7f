"""What a step, its batch and its validation came to."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from headway_api import bounds
from headway_api.in_force import Directive, DirectiveRefusal, InForce
from headway_api.record import Record
from headway_api.records.versions import PolicyVersion
from headway_api.records.weights import WeightsManifest


def _as_drawn(figures: object) -> object:
    found = bounds.named_numbers(figures)
    if not isinstance(found, dict):
        return found
    return {
        name: bounds.clipped(value, bounds.MAGNITUDE) if isinstance(value, int | float) else value
        for name, value in found.items()
    }


Figures = Annotated[dict[str, float], BeforeValidator(_as_drawn)]
"""A step's numbers by name. One beyond `bounds.MAGNITUDE` counts as that: a run that goes wrong is shown."""


class StepReport(Record):
    """The learner's word that it took step `step` with `groups`, and which step is durable by now.

    Written to the artifact store before it is sent. A learner that starts again goes on from the newest
    durable step: where that is an older one than `step`, the steps between are taken anew, from the same
    groups, in a new incarnation. It is sent again when a later step has become durable, and after every
    restart: handling it twice must change nothing. Step 0 announces the untrained weights.
    """

    step: int = Field(ge=0)
    version: PolicyVersion
    groups: list[str] = Field(fail_fast=True)
    """Ids of the batch's groups, whether trained on or filtered out."""
    train_tokens: dict[str, Annotated[int, Field(ge=0, le=int(bounds.MAGNITUDE))]]
    """Per group id, tokens that went through forward and backward (0 for a filtered group)."""
    weights: WeightsManifest
    durable: int = Field(ge=0)
    """The newest step with a whole checkpoint, when this was said: `step` or an older one."""
    metrics: Figures
    """`training/*`, `timing_s/*` and Headway's own, in the names of `headway_api.metrics`."""
    in_force: InForce = InForce()
    """What holds after the step: of a step with groups, what it was trained under."""
    directive: Directive | None = None
    """What was asked for in place of training."""
    restored: int | None = Field(default=None, ge=0)
    """The step among `directive.restore` whose weights and optimizer were taken up."""
    ended_at: float | None = None
    """When its weights were published, in Unix time of the learner. Reports of before do not say it."""
    refused: DirectiveRefusal | None = None
    """Why the directive was not done: then `in_force` is what it was, and so are the weights."""

    @property
    def trained(self) -> frozenset[str]:
        """Ids of the groups that had a gradient. The learner alone knows: it has the advantages."""
        return frozenset(group for group, tokens in self.train_tokens.items() if tokens)


class BatchFigures(Record):
    """What a step's batch came to, in the names of `headway_api.metrics`, without the learner's own figures.

    A function of the batch and of the step's report: without it a coordinator reads the batch again.
    """

    step: int = Field(ge=1)
    groups: list[str]
    """As in the step's report: a step may be taken anew, and then from other groups."""
    figures: Figures


class RowResult(Record):
    """What the tries on one row scored, in their order."""

    rewards: list[float]
    scores: list[float]


class ValidationRecord(Record):
    """What a finished validation came to."""

    step: int = Field(ge=0)
    reward: float
    external_score: float
    success: float
    episodes: int = Field(ge=0)
    failed: int = Field(ge=0)
    rows: dict[str, RowResult]
    """By group id: the rows of which a try was scored."""
    tasks: dict[str, dict[str, float]] | None = None
    """What each task came to; None where no column names tasks."""
    figures: dict[str, float]
    """What metrics show of it."""
