"""Results of a step, of its batch and of its validation."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field

from headway_api import bounds
from headway_api.in_force import Directive, DirectiveRefusal, InForce
from headway_api.record import Record
from headway_api.records.versions import PolicyVersion
from headway_api.records.waits import BatchWaits
from headway_api.records.weights import WeightsManifest


def _as_drawn(given: object) -> object:
    found = bounds.named_numbers(given)
    if not isinstance(found, dict):
        return found
    return {
        name: bounds.clipped(value, bounds.MAGNITUDE) if isinstance(value, int | float) else value
        for name, value in found.items()
    }


Metrics = Annotated[dict[str, float], BeforeValidator(_as_drawn)]
"""A step's numbers by name. A number beyond `bounds.MAGNITUDE` is clipped to it, so that a diverging run can
still be shown."""


class StepReport(Record):
    """The learner's report that it took step `step` with `groups`, and which step is durable by now.

    It is written to the artifact store before it is sent. A learner that restarts continues from the newest
    durable step. If that is older than `step`, it repeats the steps between from the same groups, in a new
    incarnation. The report is sent again when a later step becomes durable, and after every restart, so
    handling it twice must change nothing. Step 0 announces the untrained weights.
    """

    step: int = Field(ge=0)
    version: PolicyVersion
    groups: list[str] = Field(fail_fast=True)
    """Ids of the batch's groups, whether trained on or filtered out."""
    train_tokens: dict[str, Annotated[int, Field(ge=0, le=int(bounds.MAGNITUDE))]]
    """Per group id, tokens that went through forward and backward (0 for a filtered group)."""
    weights: WeightsManifest
    durable: int = Field(ge=0)
    """The newest step with a complete checkpoint when the report was written: `step` or an older step."""
    metrics: Metrics
    """`training/*`, `timing_s/*` and Headway's own, in the names of `headway_api.metrics`."""
    in_force: InForce = InForce()
    """The settings in force after the step. A step with groups was trained with them."""
    directive: Directive | None = None
    """The directive that the step carried out instead of training."""
    restored: int | None = Field(default=None, ge=0)
    """The step among `directive.restore` whose weights and optimizer were restored."""
    ended_at: float | None = None
    """When the step's weights were published, in Unix time of the learner. Older reports do not have it."""
    waits: BatchWaits | None = None
    """As `Batch.waits`. Older reports do not have it."""
    refused: DirectiveRefusal | None = None
    """Why the directive was refused. `in_force` and the weights are then unchanged."""

    @property
    def trained(self) -> frozenset[str]:
        """Ids of the groups that had a gradient. Only the learner knows this, because it computes the
        advantages."""
        return frozenset(group for group, tokens in self.train_tokens.items() if tokens)


class _StoredMetrics(Record):
    """Base of records whose metrics are stored as `figures`, as files of earlier versions have them."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)


class BatchMetrics(_StoredMetrics):
    """Metrics of a step's batch, in the names of `headway_api.metrics`, without the learner's own metrics.

    A coordinator could compute them from the batch and the step's report. This record saves it from reading
    the batch again.
    """

    step: int = Field(ge=1)
    groups: list[str]
    """Ids of the batch's groups, as in the step's report. If a step is taken again, its groups may differ."""
    metrics: Metrics = Field(alias="figures")


class RowResult(Record):
    """Scores of the tries on one row, in their order."""

    rewards: list[float]
    scores: list[float]


class ValidationRecord(_StoredMetrics):
    """Results of a finished validation."""

    step: int = Field(ge=0)
    reward: float
    external_score: float
    success: float
    episodes: int = Field(ge=0)
    failed: int = Field(ge=0)
    rows: dict[str, RowResult]
    """Group id -> scores of its row, for rows with at least one scored try."""
    tasks: dict[str, dict[str, float]] | None = None
    """Results of each task; None if no column names tasks."""
    metrics: dict[str, float] = Field(alias="figures")
    """`val/*`, in the names of `headway_api.metrics`."""
