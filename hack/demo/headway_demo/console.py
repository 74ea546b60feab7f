"""Prints the demo's progress: its steps, and the seconds that they took."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Timings:
    """Collects the seconds of every named step, in order, for the report."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def took(self, what: str, seconds: float) -> None:
        """Add seconds to a step, without printing."""
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Announce the step `what`, and print afterwards how long it took."""
        print(f"==> {what}", flush=True)
        started = time.monotonic()
        try:
            yield
        finally:
            taken = time.monotonic() - started
            self.took(what, taken)
            print(f"    {taken:.1f} s", flush=True)


def fail(message: str) -> None:
    """Write an error to standard error."""
    print(f"demo: {message}", file=sys.stderr, flush=True)
