"""How much memory a piece of a test takes at its peak, by the kernel's own count."""

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
# A larger block goes back to the kernel when it is freed. By default malloc keeps such blocks: the more tests
# a process has run, the more it keeps. A peak would then also count what lies between them.
_LIBC.mallopt(_MMAP_THRESHOLD, _LARGE)


def _kib(name: str) -> int:
    for line in (_SELF / "status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise LookupError(name)


def fresh() -> int:
    """Bytes that are in use now; the peak is this, from here on."""
    _give_back()
    (_SELF / "clear_refs").write_text("5")
    return 1024 * _kib("VmRSS")


def peak() -> int:
    """The most bytes that were in use since `fresh`."""
    return 1024 * _kib("VmHWM")


@contextmanager
def flat(limit: int) -> Iterator[None]:
    """The block's peak is at most `limit` bytes above what was there before."""
    before = fresh()
    yield
    grown = peak() - before
    assert grown <= limit, f"{grown / 2**20:.0f} MiB more at the peak, {limit / 2**20:.0f} are allowed"


@contextmanager
def kept(limit: int) -> Iterator[None]:
    """At most `limit` bytes more are in use after the block than before."""
    _give_back()
    before = _kib("VmRSS")
    yield
    _give_back()
    grown = 1024 * (_kib("VmRSS") - before)
    assert grown <= limit, f"{grown / 2**20:.0f} MiB more are kept, {limit / 2**20:.0f} are allowed"


def _give_back() -> None:
    """Return free memory to the kernel: malloc keeps some for each thread, and it would count as used."""
    _set_aside(os.environ.get("PYTEST_CURRENT_TEST", ""))
    gc.collect()
    _LIBC.malloc_trim(0)


@lru_cache(maxsize=1)
def _set_aside(test: str) -> None:
    """Exempt what there was before a test from later collections, which would take most of the time.

    It stays exempt. With all tests collected, one look through the whole heap takes seconds.
    """
    gc.collect()
    gc.freeze()
