"""Transfers weights once from the learner's memory to the workers of one rollout server.

Each transfer has its own rendezvous store and process group, which end with it. So neither DeepSpeed's groups
nor another server's transfer waits for it.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from headway_api.weights_direct import (
    GO,
    GO_SECONDS,
    STEP_SECONDS,
    TRANSFER_SECONDS,
    DirectJoin,
    DirectPlace,
    Transport,
    done,
)

BLOCKING: Final = "TORCH_NCCL_BLOCKING_WAIT"
"""Environment variable that must be set while an NCCL group is created.

Then an operation of the group that fails or times out raises an exception in its caller. Without the
variable, as in the groups of training, the group's watchdog ends the whole process.
"""
_one_at_a_time: Final = threading.Lock()


class Handover:
    """A rendezvous that waits for the workers of one server, and then sends them the weights."""

    def __init__(
        self,
        join: DirectJoin,
        device: torch.device,
        *,
        step_seconds: float = STEP_SECONDS,
        go_seconds: float = GO_SECONDS,
        transfer_seconds: float = TRANSFER_SECONDS,
    ) -> None:
        """Open the rendezvous. `device` is where this process computes."""
        self._size = 1 + join.workers
        self._step = timedelta(seconds=step_seconds)
        self._go = timedelta(seconds=go_seconds)
        self._max_seconds = transfer_seconds
        transport: Transport = "nccl" if join.accelerated and device.type == "cuda" else "gloo"
        # gloo sends from the memory that holds the tensors.
        self._device = device if transport == "nccl" else torch.device("cpu")
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=self._step)
        self.place = DirectPlace(port=store.port, key=secrets.token_hex(16), transport=transport)
        self._store = PrefixStore(self.place.key, store)

    def run(self, tensors: Sequence[Tensor]) -> float:
        """Connect to the workers and send them `tensors`, which are on the CPU. Return the seconds since
        their GO.

        Raises:
            RuntimeError: the workers did not connect, left, or stopped responding.
        """
        with self._stream():
            group = _process_group(self.place.transport, self._store, self._size, self._step)
            # NCCL connects at the first message. Send one now, so that a connection problem shows before GO.
            _broadcast(group, torch.zeros(1, dtype=torch.uint8, device=self._device))
            self._store.wait([GO], self._go)
            started = time.monotonic()
            for tensor in tensors:
                if time.monotonic() - started > self._max_seconds:
                    raise RuntimeError(f"not all tensors were transferred after {self._max_seconds:.0f} s")
                _broadcast(group, tensor.view(-1).view(torch.uint8).to(self._device))
        # Wait until all workers are done: ending the group would abort sends in progress.
        self._store.wait([done(rank) for rank in range(1, self._size)], self._step)
        return time.monotonic() - started

    def _stream(self) -> AbstractContextManager[object]:
        """A separate CUDA stream, so that transfers do not wait for the stream of training."""
        if self._device.type != "cuda":
            return nullcontext()
        torch.cuda.set_device(self._device)
        stream: AbstractContextManager[object] = torch.cuda.stream(torch.cuda.Stream(self._device))
        return stream


def _process_group(transport: Transport, store: Any, size: int, limit: timedelta) -> Any:
    """The group of one transfer, as its rank 0. `limit` bounds its creation and each of its operations."""
    if transport == "gloo":
        return dist.ProcessGroupGloo(store, 0, size, limit)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = limit
    with _one_at_a_time:
        before = os.environ.get(BLOCKING)
        os.environ[BLOCKING] = "1"
        try:
            return dist.ProcessGroupNCCL(store, 0, size, options)
        finally:
            if before is None:
                del os.environ[BLOCKING]
            else:
                os.environ[BLOCKING] = before


def _broadcast(group: Any, data: Tensor) -> None:
    """Send `data` to all other members of the group, and wait until it is sent."""
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    group.broadcast([data], options).wait()
