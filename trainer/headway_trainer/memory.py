"""How much memory there is for another copy of a model; asked before it is loaded, while nothing is lost."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

ROOM: Final = 1.1
"""A copy must fit so many times: its forward pass takes some, and the allocator does."""
GIB: Final = 1 << 30


def size(model: nn.Module) -> int:
    """Bytes of all weights of a model, be they spread over ranks or not."""
    weights: list[Any] = list(model.parameters())
    return sum(getattr(weight, "ds_numel", weight.numel()) * weight.element_size() for weight in weights)


def short_of(needed: int, processes: int, device: torch.device, root: Path = Path("/")) -> str:
    """What there is too little of for `needed` bytes in each of this node's `processes`; nothing where they
    fit.

    A copy is read into the host's memory first, wherever it goes from there.
    """
    wanted = {"host memory": int(ROOM * needed * processes)}
    there = {"host memory": host_memory(root)}
    if device.type == "cuda":
        wanted["accelerator memory"] = int(ROOM * needed)
        there["accelerator memory"] = _device_memory(device)
    return "; ".join(
        f"{what}: {wanted[what] / GIB:.1f} GiB are needed and {there[what] / GIB:.1f} GiB are free"
        for what in wanted
        if wanted[what] > there[what]
    )


def host_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may take yet: of the machine, and of its control group where that has a limit.

    What the kernel has merely cached of files counts as free.
    """
    free = int(_numbers(root / "proc/meminfo")["MemAvailable:"]) * 1024
    group = root / "sys/fs/cgroup"
    try:
        limit, used = int((group / "memory.max").read_text()), int((group / "memory.current").read_text())
        cached = int(_numbers(group / "memory.stat")["inactive_file"])
    except (OSError, ValueError, KeyError):  # no control group of the second version, or "max"
        return free
    return max(0, min(free, limit - used + cached))


def release() -> None:
    """Have memory that nobody holds any more be free: models and engines are full of circles."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _device_memory(device: torch.device) -> int:
    """Free for all, and what this process has set aside and does not use."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _numbers(file: Path) -> Mapping[str, str]:
    lines = (line.split() for line in file.read_text().splitlines())
    return {line[0]: line[1] for line in lines if len(line) > 1}
