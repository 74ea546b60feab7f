"""Notices that the reader of a command's output has ended, as `head` does after its lines."""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

LOOK_MILLISECONDS: Final = 500
"""Longest that the end of a command waits for the thread that looks."""


class ReaderGone(Exception):
    """Nobody reads the output any more."""


def out() -> int | None:
    """File descriptor of a standard output with a reader at its other end; else None."""
    try:
        found = sys.stdout.fileno()
        kind = os.fstat(found).st_mode
    except (OSError, ValueError):  # a test's output is no file
        return None
    return found if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) else None


@contextmanager
def looked_after() -> Iterator[None]:
    """Raise ReaderGone in the main thread once the reader has ended, even while that thread waits.

    Otherwise a command would notice only at its next line, which may be hours away.
    """
    found = out()
    if found is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    over, gone = threading.Event(), threading.Event()

    def raised(*_: object) -> None:
        if gone.is_set():  # a broken network connection sends the same signal
            raise ReaderGone

    before = signal.signal(signal.SIGPIPE, raised)
    thread = threading.Thread(target=_look, args=(found, over, gone), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        signal.signal(signal.SIGPIPE, before)


def _look(descriptor: int, over: threading.Event, gone: threading.Event) -> None:
    """Wait until the other end is closed, and wake the main thread."""
    poll = select.poll()
    poll.register(descriptor, 0)  # errors are always reported
    while not over.is_set():
        if poll.poll(LOOK_MILLISECONDS) and not over.is_set():
            gone.set()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGPIPE)
            return


def give_up() -> None:
    """Discard the remaining output: the interpreter would flush it at its end, and fail with a traceback."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
