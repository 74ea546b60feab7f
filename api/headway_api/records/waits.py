"""What a batch waits for beside its episodes."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from headway_api.record import Record

BatchWaitKind = Literal["start", "weights", "validation", "budget", "storing"]
"""What the coordinator does, in the order of these names. It starts, until a learner asks it. It waits until
a server holds the wanted weights. A validation withholds the batch. The last group that began waited for the
budget. The group that was finished last is judged as a whole, stored and billed."""

MAX_BATCH_WAITS: Final = 16
"""Maximum waits of one batch; the newest are kept."""


class BatchWait(Record):
    """One wait of a batch, and when it was."""

    kind: BatchWaitKind
    began: float
    """Unix time of the coordinator."""
    ended: float


class BatchWaits(Record):
    """The waits of a batch, as the coordinator measured them."""

    sent_at: float
    """When the coordinator began to send the batch, in its Unix time."""
    waits: list[BatchWait] = Field(default_factory=list, max_length=MAX_BATCH_WAITS)
    """Those that were not over long before, and may overlap."""
