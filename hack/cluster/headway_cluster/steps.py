"""Reports each step of the setup, and how long it took."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(text: str) -> None:
    """Write one line of progress to standard error, so that standard output has only results."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Announce the step `what`, and after it the seconds that it took."""
    started = time.monotonic()
    print(f"  {what} ...", end=" ", file=sys.stderr, flush=True)
    try:
        yield
    except BaseException:
        say(f"failed after {time.monotonic() - started:.1f} s")
        raise
    say(f"{time.monotonic() - started:.1f} s")
