"""The learner's processes as one group: this process's rank, and messages between ranks.

Only rank 0 talks to the coordinator and writes pointers. It passes what it received to the others with
`share`. Control messages use gloo on the CPU, and gradients use the accelerator's own backend.
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
"""How long one rank may be behind the others in a collective of training (gradients, weights)."""
CONTROL_TIMEOUT: Final = timedelta(hours=2)
"""How long one rank may work (a download, a conversion, an upload) while the others wait for it. If a process
ends, the others notice at once, by its closed connections. So this limit matters only for a process that
hangs.
"""


@dataclass(frozen=True)
class Ranks:
    """This process's position among `world` processes, and their control channel."""

    rank: int
    local_rank: int
    world: int
    control: dist.ProcessGroup | None

    @classmethod
    def join(cls) -> Ranks:
        """Join the other processes, as RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT specify."""
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
        """The device of this process."""
        return torch.device("cuda", self.local_rank) if torch.cuda.is_available() else torch.device("cpu")

    def share(self, value: Value) -> Value:
        """Rank 0's `value`, on every rank. It must be picklable; the values of the other ranks are
        ignored."""
        box = [value]
        if self.world > 1:
            dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def gather(self, value: Value) -> list[Value]:
        """The values of all ranks, in rank order, on every rank."""
        if self.world == 1:
            return [value]
        values: list[Value | None] = [None] * self.world
        dist.all_gather_object(values, value, group=self.control)
        return values  # type: ignore[return-value]

    def total(self, values: Sequence[float]) -> list[float]:
        """Elementwise sums over the ranks, on every rank."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def maximum(self, values: Sequence[float]) -> list[float]:
        """Elementwise maxima over the ranks, on every rank."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def added(self, mine: Tensor) -> Tensor:
        """The sum of the ranks' tensors, which have one shape and are on the CPU. It changes `mine`."""
        if self.world > 1:
            dist.all_reduce(mine, group=self.control)
        return mine

    def barrier(self) -> None:
        """Wait until every rank has called this."""
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
