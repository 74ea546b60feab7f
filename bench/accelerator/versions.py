"""Lists the versions of packages that ran, and measures the accelerator's peak rate."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from bench.accelerator import hardware
from bench.support.report import Row, Section, Table, prose
from bench.support.stats import shown

SIZE = 8192
REPEATS = 10


def measure(folder: Path) -> Section:
    """List versions, and measure the rate of a large matrix product."""
    size = 256 if hardware.rehearsing() else SIZE
    read = prose(f"""
        The learner's image pins other versions than this machine may have had: both are named. A product of
        two {size} x {size} matrices of random bfloat16 is what shares of the accelerator's rate are shares
        of. {hardware.bridged()}
    """)
    found: list[Row] = [{"what": "matrix product, bfloat16", "TFLOP/s": shown(product(size) / 1e12)}]
    rows: list[Row] = [dict(row) for row in hardware.versions()]
    return Section(title="What ran", read=read, tables=[Table("Versions", rows), Table("Rate", found)])


def product(size: int = SIZE) -> float:
    """Floating-point operations per second of a large matrix product in bfloat16."""
    device = hardware.kind()
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    _wait()
    began = time.perf_counter()
    for _ in range(REPEATS):
        a @ b
    _wait()
    return 2 * size**3 * REPEATS / (time.perf_counter() - began)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
