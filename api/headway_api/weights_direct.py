"""How a rollout server takes weights out of the learner's memory (`spec.learner.weights.backend: nccl`).

    agent   GET  /v1/weights/<sha256>        200 `DirectHeader` | 404 Problem: other weights are on offer
    agent   POST /v1/weights/<sha256>/join   `DirectJoin` -> 200 `DirectPlace` | 404 Problem
    worker  meets the learner at the place, in a process group of its own. The learner is rank 0 and sends
            a byte: the way is open
    worker  sets GO once its engine is paused; then the tensors come, in the header's order, as bytes

The learner serves the first two to who has `Key.ROLLOUT_TO_LEARNER`, at the address that a manifest's
`direct` names; weights are asked for by the digest of their header. The place is a rendezvous store of
torch.distributed: opened for one join, on a port of the system's choice, under a key that was told to
nobody else.
"""

from __future__ import annotations

import hashlib
from typing import Final, Literal

from pydantic import Field

from headway_api.record import Record

GO: Final = "go"
"""Key in the place's store that rank 1 sets when the workers are about to take tensors."""

MEET_SECONDS: Final = 12.0
"""Longest a worker may take to reach the place, whose address it was given just now. Torch asks the DNS twice
for each connection, and a lost answer is 5 s."""
STEP_SECONDS: Final = 60.0
"""Longest the group may take to form, and one tensor to travel."""
GO_SECONDS: Final = 180.0
"""Longest the learner waits for GO: the engine ends the step it is in and drops what it has computed."""
TRANSFER_SECONDS: Final = 600.0
"""Longest all tensors may take."""

MOST_WORKERS: Final = 1024
"""Of one server: more than any engine has."""

Transport = Literal["nccl", "gloo"]


class DirectTensor(Record):
    """One tensor, before it travels."""

    name: str
    dtype: str
    """As safetensors names it: F32, BF16, F16."""
    shape: list[int]
    sha256: str
    """Of its bytes."""


class DirectHeader(Record):
    """What travels, in this order. It says nothing of the version: the same weights have the same header."""

    tensors: list[DirectTensor] = Field(fail_fast=True)

    @property
    def sha256(self) -> str:
        """By which a manifest names it."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


class DirectJoin(Record):
    """Who wants weights."""

    workers: int = Field(ge=1, le=MOST_WORKERS)
    """Processes of the engine, each of which takes every tensor."""
    accelerated: bool
    """Whether they compute on a GPU."""


class DirectPlace(Record):
    """Where the workers meet the learner, on its host."""

    port: int
    key: str
    transport: Transport


def done(rank: int) -> str:
    """Key in the place's store that a rank sets when it has every tensor."""
    return f"done/{rank}"


def header_path(sha256: str) -> str:
    """Path of a header."""
    return f"/v1/weights/{sha256}"


def join_path(sha256: str) -> str:
    """Path at which to join for the weights of a header."""
    return f"{header_path(sha256)}/join"
