"""The learner's processes as one group: this process's rank, and messages between ranks.

Only rank 0 uses HTTP and writes pointers. What it learns reaches the others through `share`. Control messages
travel over gloo on the CPU, gradients over the accelerator's own backend.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Value = TypeVar("Value")

COLLECTIVE_TIMEOUT: Final = timedelta(minutes=30)
"""Longest that one rank may be behind the others while all compute the same: gradients, weights."""
CONTROL_TIMEOUT: Final = timedelta(hours=2)
"""Longest that one rank may work (a download, a conversion, an upload) while the others wait for it. The
others notice a process that is gone at once, by its closed connections. So this bounds one that hangs."""


@dataclass(frozen=True)
class Ranks:
    """This process's place among `world`, and the control channel."""

    rank: int
    local_rank: int
    world: int
    control: dist.ProcessGroup | None

    @classmethod
    def join(cls) -> Ranks:
        """Meet the other processes, as RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say."""
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local_rank = int(os.environ["LOCAL_RANK"])
        # cuDNN would make a plan for every new row length, which costs seconds in every step.
        torch.backends.cuda.enable_cudnn_sdp(False)
        if torch.cuda.is_available():
            torch.cuda.set_device(local_rank)
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        if world == 1:
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
            return cls(0, local_rank, 1, None)
        dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
        return cls(rank, local_rank, world, dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT))

    @property
    def first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return torch.device("cuda", self.local_rank) if torch.cuda.is_available() else torch.device("cpu")

    def share(self, value: Value) -> Value:
        """What rank 0 passed, on every rank. It must be picklable; what the others pass is ignored."""
        box = [value]
        if self.world > 1:
            dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def gather(self, value: Value) -> list[Value]:
        """What each rank passed, in rank order, on every rank."""
        if self.world == 1:
            return [value]
        values: list[Value | None] = [None] * self.world
        dist.all_gather_object(values, value, group=self.control)
        return values  # type: ignore[return-value]

    def total(self, values: Sequence[float]) -> list[float]:
        """Sums over the ranks."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def maximum(self, values: Sequence[float]) -> list[float]:
        """Maxima over the ranks."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def added(self, mine: Tensor) -> Tensor:
        """The sum of what the ranks passed: tensors of one shape on the CPU."""
        if self.world > 1:
            dist.all_reduce(mine, group=self.control)
        return mine

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.world > 1:
            dist.barrier(group=self.control)

    def leave(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()

    def _reduce(self, values: Sequence[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64)
        if self.world > 1:
            dist.all_reduce(tensor, operation, group=self.control)
        return [float(value) for value in tensor]
