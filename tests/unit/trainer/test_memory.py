"""Whether memory suffices for another copy of a model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from headway_trainer import memory

CPU = torch.device("cpu")
GIB = memory.GIB


def machine(root: Path, *, free: int, limit: str = "", used: int = 0, cached: int = 0) -> Path:
    """Write a machine's files: `free` bytes of memory, and a control group if `limit` is not empty.

    Returns the root.
    """
    (root / "proc").mkdir()
    (root / "proc/meminfo").write_text(f"MemTotal:  999999 kB\nMemAvailable:  {free // 1024} kB\n")
    if limit:
        group = root / "sys/fs/cgroup"
        group.mkdir(parents=True)
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text(f"{used}\n")
        (group / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\n")
    return root


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ({}, 8 * GIB),
        ({"limit": "max"}, 8 * GIB),
        ({"limit": str(5 * GIB), "used": 4 * GIB, "cached": 1 * GIB}, 2 * GIB),
        ({"limit": str(99 * GIB), "used": 4 * GIB}, 8 * GIB),
        ({"limit": str(2 * GIB), "used": 3 * GIB}, 0),
    ],
)
def test_the_tighter_of_machine_and_control_group_counts(
    tmp_path: Path, group: dict[str, object], expected: int
) -> None:
    assert memory.host_memory(machine(tmp_path, free=8 * GIB, **group)) == expected  # type: ignore[arg-type]


def test_every_process_of_a_node_reads_a_copy(tmp_path: Path) -> None:
    root = machine(tmp_path, free=8 * GIB)
    assert memory.short_of(7 * GIB, 1, CPU, root) == ""
    assert memory.short_of(7 * GIB, 2, CPU, root) == "host memory: 15.4 GiB are needed and 8.0 GiB are free"
    assert memory.short_of(int(7.5 * GIB), 1, CPU, root), "no room is left for its own work"


def test_on_an_accelerator_the_copy_must_fit_there_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, device = machine(tmp_path, free=99 * GIB), torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 12 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 10 * GIB)
    assert memory.short_of(4 * GIB, 1, device, root) == ""
    message = memory.short_of(5 * GIB, 1, device, root)
    assert message == "accelerator memory: 5.5 GiB are needed and 5.0 GiB are free"


def test_the_memory_of_this_machine_can_be_read() -> None:
    assert memory.host_memory() > 0


def test_the_size_of_a_model_is_the_sum_of_its_tensors() -> None:
    assert memory.size(nn.Linear(3, 5, dtype=torch.bfloat16)) == 2 * (15 + 5)
