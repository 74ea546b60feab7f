"""Measures how much memory a part of a test needs at its peak, by the kernel's count."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

_SELF = Path("/proc/self")
_MMAP_THRESHOLD = -3
"""M_MMAP_THRESHOLD of malloc.h."""
_LARGE = 1024 * 1024
_LIBC = ctypes.CDLL(None)
# Blocks above this size go back to the kernel when they are freed. By default, malloc keeps such blocks, and
# keeps more the more tests a process has run. A peak would then count the free memory between them too.
_LIBC.mallopt(_MMAP_THRESHOLD, _LARGE)


def _kib(name: str) -> int:
    for line in (_SELF / "status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise LookupError(name)


def fresh() -> int:
    """Bytes that are in use now. `peak` starts again from this value."""
    _give_back()
    (_SELF / "clear_refs").write_text("5")
    return 1024 * _kib("VmRSS")


def peak() -> int:
    """Maximum bytes that were in use since `fresh`."""
    return 1024 * _kib("VmHWM")


@contextmanager
def flat(limit: int) -> Iterator[None]:
    """Assert that the block's peak is at most `limit` bytes above the memory in use before."""
    before = fresh()
    yield
    grown = peak() - before
    assert grown <= limit, f"{grown / 2**20:.0f} MiB more at the peak, {limit / 2**20:.0f} are allowed"


@contextmanager
def kept(limit: int) -> Iterator[None]:
    """Assert that at most `limit` bytes more are in use after the block than before."""
    _give_back()
    before = _kib("VmRSS")
    yield
    _give_back()
    grown = 1024 * (_kib("VmRSS") - before)
    assert grown <= limit, f"{grown / 2**20:.0f} MiB more are kept, {limit / 2**20:.0f} are allowed"


def _give_back() -> None:
    """Return free memory to the kernel: malloc keeps some for each thread, which would count
    as used."""
    _set_aside(os.environ.get("PYTEST_CURRENT_TEST", ""))
    gc.collect()
    _LIBC.malloc_trim(0)


@lru_cache(maxsize=1)
def _set_aside(test: str) -> None:
    """Exempt all objects that exist before a test from later garbage collections.

    They stay exempt. With all tests collected, one pass over the whole heap takes seconds.
    """
    gc.collect()
    gc.freeze()
