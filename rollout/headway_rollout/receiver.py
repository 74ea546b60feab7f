"""Runs in vLLM's worker: receives tensors from the learner's memory (`headway_api.weights_direct`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from headway_api.weights_direct import (
    GO,
    MEET_SECONDS,
    STEP_SECONDS,
    DirectHeader,
    DirectPlace,
    Transport,
    done,
)

BLOCKING: Final = "TORCH_NCCL_BLOCKING_WAIT"
"""Environment variable that torch reads when an NCCL group is created. If set, an operation that fails or
times out raises in its caller. Otherwise the group's watchdog ends the whole process."""
DTYPES: Final = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class Receiver:
    """This worker's member of the process group that one transfer uses."""

    def __init__(
        self,
        host: str,
        place: DirectPlace,
        *,
        rank: int,
        size: int,
        device: torch.device,
        step_seconds: float = STEP_SECONDS,
    ) -> None:
        """Meet the learner; no weights are sent yet.

        Args:
            rank: rank of this worker, from 1: the learner is 0.
            size: number of processes in the group, including the learner.
            device: device of the model. With gloo, the tensors arrive on the CPU instead.
            step_seconds: maximum seconds for the group to form, and for one tensor to arrive.

        Raises:
            RuntimeError: the learner could not be met.
        """
        limit = timedelta(seconds=step_seconds)
        met = TCPStore(
            host,
            place.port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=min(MEET_SECONDS, step_seconds)),
        )
        self._store = PrefixStore(place.key, met)
        # gloo receives into CPU memory only.
        self._device = device if place.transport == "nccl" else torch.device("cpu")
        self._group = _process_group(place.transport, self._store, rank, size, limit)
        self._rank = rank
        self._take(torch.empty(1, dtype=torch.uint8, device=self._device))

    def tensors(self, header: DirectHeader) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors of `header`, one after the other as they arrive.

        Raises:
            RuntimeError: the learner left or stopped responding.
        """
        if self._rank == 1:
            self._store.set(GO, "")
        for tensor in header.tensors:
            found = torch.empty(tensor.shape, dtype=DTYPES[tensor.dtype], device=self._device)
            self._take(found.view(-1).view(torch.uint8))
            yield tensor.name, found
        self._store.set(done(self._rank), "")

    def _take(self, data: torch.Tensor) -> None:
        """Fill `data` with the learner's next broadcast."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._group.broadcast([data], options).wait()


def _process_group(transport: Transport, store: Any, rank: int, size: int, limit: timedelta) -> Any:
    """Create the process group for a rank other than the learner's; the learner has the same function."""
    if transport == "gloo":
        return dist.ProcessGroupGloo(store, rank, size, limit)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = limit
    before = os.environ.get(BLOCKING)
    os.environ[BLOCKING] = "1"
    try:
        return dist.ProcessGroupNCCL(store, rank, size, options)
    finally:
        if before is None:
            del os.environ[BLOCKING]
        else:
            os.environ[BLOCKING] = before
