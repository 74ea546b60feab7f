"""What a person sees while the demo works: steps with the seconds they took."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Timings:
    """Seconds of every named step, in order; the report prints them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def took(self, what: str, seconds: float) -> None:
        """Add seconds of a step that its caller has already announced."""
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Announce `what`, and afterwards how long it took."""
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
