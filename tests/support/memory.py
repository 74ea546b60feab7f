"""How much memory a piece of a test takes at its peak, by the kernel's own count."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SELF = Path("/proc/self")


def _kib(name: str) -> int:
    for line in (_SELF / "status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise LookupError(name)


@contextmanager
def flat(most: int) -> Iterator[None]:
    """The block's peak is at most `most` bytes above what was there before."""
    gc.collect()
    (_SELF / "clear_refs").write_text("5")  # the peak is what there is now
    before = _kib("VmRSS")
    yield
    grown = 1024 * (_kib("VmHWM") - before)
    assert grown <= most, f"{grown / 2**20:.0f} MiB more at the peak, {most / 2**20:.0f} are allowed"
