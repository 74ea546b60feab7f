"""How a rollout server takes weights from the learner's memory (`spec.learner.weights.backend: nccl`).

    agent   GET  /v1/weights/<sha256>        200 `DirectHeader` | 404 Problem: it offers other weights
    agent   POST /v1/weights/<sha256>/join   `DirectJoin` -> 200 `DirectPlace` | 404 Problem
    worker  meets the learner at the place, and both form a process group. The learner is rank 0 and sends
            a byte, which shows that the connection works
    worker  sets GO once its engine is paused; the tensors follow, in the header's order, as bytes

The learner serves both requests to holders of `Key.ROLLOUT_TO_LEARNER`, at the address in a manifest's
`direct`. The agent asks for weights by the digest of their header. The place is a rendezvous store of
torch.distributed. The learner opens it for one join, on a port that the system chooses. Its key is known only
to the learner and the workers.
"""

from __future__ import annotations

import hashlib
from typing import Final, Literal

from pydantic import Field

from headway_api.record import Record

GO: Final = "go"
"""Key in the rendezvous store that rank 1 sets when the workers are ready to receive tensors."""

MEET_SECONDS: Final = 12.0
"""Maximum seconds that a worker may take to reach the rendezvous store, whose address it has just received.
Torch asks the DNS twice for each connection, and a lost answer costs 5 s."""
STEP_SECONDS: Final = 60.0
"""Maximum seconds for forming the process group, and for sending one tensor."""
GO_SECONDS: Final = 180.0
"""Maximum seconds that the learner waits for GO: the engine finishes its present step and drops what it has
computed."""
TRANSFER_SECONDS: Final = 600.0
"""Maximum seconds for all tensors."""

MAX_WORKERS: Final = 1024
"""Maximum workers of one server: more than any engine has."""

Transport = Literal["nccl", "gloo"]


class DirectTensor(Record):
    """Description of one tensor that the learner will send."""

    name: str
    dtype: str
    """Type as safetensors names it: F32, BF16, F16."""
    shape: list[int]
    sha256: str
    """SHA-256 of the tensor's bytes."""


class DirectHeader(Record):
    """The tensors that are sent, in this order. It does not name the version: equal weights have the same
    header."""

    tensors: list[DirectTensor] = Field(fail_fast=True)

    @property
    def sha256(self) -> str:
        """Digest by which a manifest names the header."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


class DirectJoin(Record):
    """The engine that asks for weights."""

    workers: int = Field(ge=1, le=MAX_WORKERS)
    """Processes of the engine; each receives every tensor."""
    accelerated: bool
    """Whether the processes compute on a GPU."""


class DirectPlace(Record):
    """Where the workers meet the learner: a rendezvous store on the learner's host."""

    port: int
    key: str
    transport: Transport


def done(rank: int) -> str:
    """Key in the rendezvous store that a rank sets when it has received every tensor."""
    return f"done/{rank}"


def header_path(sha256: str) -> str:
    """Path at which the learner serves the header with this digest."""
    return f"/v1/weights/{sha256}"


def join_path(sha256: str) -> str:
    """Path at which an engine asks for the weights that a header describes."""
    return f"{header_path(sha256)}/join"
