"""What a batch waits for, besides its episodes."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from headway_api.record import Record

BatchWaitKind = Literal["start", "weights", "validation", "budget", "storing"]
"""What a batch waits for.

start: the coordinator's start, until a learner asks for a batch.
weights: a server that holds the wanted weights.
validation: a validation, before whose end the batch is not sent.
budget: the budget, for the group of the batch that began last.
storing: the judgement of the group that finished last as a whole, its storage and its bill.
"""

MAX_BATCH_WAITS: Final = 16
"""Maximum waits of one batch; the newest are kept."""


class BatchWait(Record):
    """One wait of a batch, with its beginning and end."""

    kind: BatchWaitKind
    began: float
    """Unix time of the coordinator."""
    ended: float


class BatchWaits(Record):
    """The waits of a batch, as the coordinator measured them."""

    sent_at: float
    """When the coordinator began to send the batch, in its Unix time."""
    waits: list[BatchWait] = Field(default_factory=list, max_length=MAX_BATCH_WAITS)
    """The newest waits, which may overlap."""
