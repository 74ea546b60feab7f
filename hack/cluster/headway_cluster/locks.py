"""One command at a time where two would be in each other's way; a second one waits."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from .layout import Layout


@contextmanager
def alone(layout: Layout, what: str) -> Iterator[None]:
    """Hold the lock on `what`; it goes with this process, however that ends."""
    folder = layout.cache / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / what, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
