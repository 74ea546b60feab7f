"""Ends a command when the reader of its output has ended, such as `head` after its last line."""

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
"""Milliseconds of one wait for the reader's end. At the latest then, the thread notices the command's end."""
RESEND_SECONDS: Final = 0.1
"""Seconds after which the signal is sent again, until the main thread has handled it. A signal that arrives
just before a system call does not interrupt the call."""


class ClosedPipeError(Exception):
    """The process that read the output has ended."""


def out() -> int | None:
    """File descriptor of standard output if it is a pipe or a socket, which has a reader; else None."""
    try:
        found = sys.stdout.fileno()
        kind = os.fstat(found).st_mode
    except (OSError, ValueError):  # a test's output is not a file
        return None
    return found if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) else None


@contextmanager
def interrupted_when_reader_ends() -> Iterator[None]:
    """Raise ClosedPipeError in the main thread once the reader has ended, even while that thread waits.

    Otherwise a command would notice only at its next line, which may be hours away.
    """
    found = out()
    if found is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    reader = _Reader()
    before = signal.signal(signal.SIGPIPE, reader.handle)
    thread = threading.Thread(target=reader.look, args=(found,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        reader.over.set()
        signal.signal(signal.SIGPIPE, before)


class _Reader:
    """The process that reads the output."""

    def __init__(self) -> None:
        self.over = threading.Event()
        """Set once the block is over, so that the reader need not be watched any more."""
        # Plain values and no locks, because a signal handler may interrupt itself.
        self._gone = self._handled = False

    def handle(self, *_: object) -> None:
        """Handle SIGPIPE in the main thread: raise ClosedPipeError, once, if the reader has ended."""
        if self._gone and not self._handled:  # a broken network connection causes SIGPIPE too
            self._handled = True
            raise ClosedPipeError

    def look(self, descriptor: int) -> None:
        """Wait until the reader closes its end, and then interrupt the main thread with SIGPIPE."""
        poll = select.poll()
        poll.register(descriptor, 0)  # errors are always reported
        while not self.over.is_set() and not poll.poll(LOOK_MILLISECONDS):
            pass
        self._gone = True
        while not self._handled and not self.over.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGPIPE)
            self.over.wait(RESEND_SECONDS)


def discard_output() -> None:
    """Discard the remaining output. Otherwise Python would flush it at exit, and print a traceback."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
