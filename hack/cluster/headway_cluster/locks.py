"""Locks for work that only one command may do at a time; a second command waits."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from .layout import Layout


@contextmanager
def alone(layout: Layout, what: str) -> Iterator[None]:
    """Hold the lock called `what`. The kernel also releases it if this process ends in any way."""
    folder = layout.cache / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / what, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
