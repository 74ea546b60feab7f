"""Checks whether there is enough memory for another copy of a model, before the copy is loaded."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

ROOM: Final = 1.1
"""Factor on a copy's size: its forward pass and the allocator need memory too."""
GIB: Final = 1 << 30


def size(model: nn.Module) -> int:
    """Bytes of all weights of a model, unsharded, even if ranks share them."""
    weights: list[Any] = list(model.parameters())
    return sum(getattr(weight, "ds_numel", weight.numel()) * weight.element_size() for weight in weights)


def short_of(needed: int, processes: int, device: torch.device, root: Path = Path("/")) -> str:
    """Names each memory that is too small for `needed` bytes in each of this node's `processes`.

    The result is empty if the copies fit. Each copy needs host memory first, also if it moves to a GPU.
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
    """Free bytes of the machine, or of this process's control group if its limit leaves less.

    Inactive page cache counts as free.
    """
    free = int(_numbers(root / "proc/meminfo")["MemAvailable:"]) * 1024
    group = root / "sys/fs/cgroup"
    try:
        limit, used = int((group / "memory.max").read_text()), int((group / "memory.current").read_text())
        cached = int(_numbers(group / "memory.stat")["inactive_file"])
    except (OSError, ValueError, KeyError):  # no control group v2, or "max"
        return free
    return max(0, min(free, limit - used + cached))


def release() -> None:
    """Free the memory of dropped models and engines. They are full of reference cycles, so only the garbage
    collector frees them."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _device_memory(device: torch.device) -> int:
    """Free bytes of the device, plus the bytes that this process has reserved and does not use."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _numbers(file: Path) -> Mapping[str, str]:
    lines = (line.split() for line in file.read_text().splitlines())
    return {line[0]: line[1] for line in lines if len(line) > 1}
