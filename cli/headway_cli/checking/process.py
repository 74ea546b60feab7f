"""Runs the author's code in processes that end within a time limit and leave no process behind."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from headway_sandbox import process as processes


@contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, which is killed at the end of the block.

    `options` are passed to `Popen`. An interrupt (Ctrl-C) while the process starts or ends is raised only
    afterwards, so that the process never stays behind.
    """
    interrupts = _Interrupts()
    process = None
    try:
        process = subprocess.Popen(command, start_new_session=True, **options)
        try:
            interrupts.deliver()
            yield process
        finally:
            interrupts.defer()
    finally:
        try:
            if process is not None:
                end(process)
        finally:
            interrupts.restore()


def ended(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Wait at most `seconds` for a process, and return its exit code; None if it has not ended by then."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with its descendants, even those outside its session. No effect if it has ended."""
    if process.poll() is not None:
        return
    left = processes.living(process.pid)
    processes.kill(process.pid, group=True)
    for pid in left:
        processes.kill(pid)
    process.wait()


class _Interrupts:
    """Delivers SIGINT while the block runs, and defers it while the process starts and ends.

    After the first SIGINT was delivered, further ones are deferred, because the process may be ending. Only
    the main thread receives SIGINT, so nothing happens in other threads.
    """

    def __init__(self) -> None:
        self._deferring = True
        self._came = False
        self._before: Any = None
        if threading.current_thread() is threading.main_thread() and callable(
            signal.getsignal(signal.SIGINT)
        ):
            self._before = signal.signal(signal.SIGINT, self._handle)

    def deliver(self) -> None:
        """Raise an interrupt that was deferred. From now on an interrupt is raised at once.

        Raises:
            KeyboardInterrupt: an interrupt was deferred.
        """
        self._deferring = False
        self._raise_deferred()

    def defer(self) -> None:
        """Defer interrupts from now on, instead of raising them."""
        self._deferring = True

    def restore(self) -> None:
        """Restore the earlier handler of SIGINT, and raise an interrupt that was deferred.

        Raises:
            KeyboardInterrupt: an interrupt was deferred.
        """
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        self._raise_deferred()

    def _raise_deferred(self) -> None:
        if self._came:
            self._came = False
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._deferring:
            self._came = True
            return
        self._deferring = True
        self._before(number, frame)
        self._deferring = False  # the earlier handler did not raise, so the block continues
