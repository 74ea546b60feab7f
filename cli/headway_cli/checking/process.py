"""Processes that run the author's code: they end within their time, and leave no process behind."""

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
    """A process in a session of its own, which ends with the block. `options` are those of `Popen`.

    An interrupt while it starts or ends is raised afterwards, so that the process never stays behind.
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
    """Wait for a process, and return its exit code; None if it has not ended in time."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its descendants, which may have left its session; no effect if it has ended."""
    if process.poll() is not None:
        return
    left = processes.living(process.pid)
    processes.kill(process.pid, group=True)
    for pid in left:
        processes.kill(pid)
    process.wait()


class _Interrupts:
    """Delivers SIGINT while the block runs, and defers it while the process starts and ends.

    Once one has been delivered, the next are deferred: the first may have begun the end.
    Another thread than the main one never receives SIGINT.
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
        """Raise the interrupt that came meanwhile; from now on each is raised at once.

        Raises:
            KeyboardInterrupt: one came.
        """
        self._deferring = False
        self._raise_deferred()

    def defer(self) -> None:
        """From now on note an interrupt instead of raising it."""
        self._deferring = True

    def restore(self) -> None:
        """Set the handler that was there before, and raise the interrupt that was deferred.

        Raises:
            KeyboardInterrupt: one came.
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
        self._deferring = False  # the handler before did not raise, so the block goes on
