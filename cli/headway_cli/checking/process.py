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

    An interrupt while it starts is raised afterwards. Raised in `Popen`, it would leave the process running.
    """
    interrupts = _DeferredInterrupts()
    process = None
    try:
        process = subprocess.Popen(command, start_new_session=True, **options)
        interrupts.deliver()
        yield process
    finally:
        interrupts.restore()
        if process is not None:
            end(process)


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


class _DeferredInterrupts:
    """Notes SIGINT instead of raising it. Another thread than the main one never receives it."""

    def __init__(self) -> None:
        self._came = False
        self._before: Any = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)

    def deliver(self) -> None:
        """Raise the interrupt that came meanwhile; from now on they are raised at once.

        Raises:
            KeyboardInterrupt: one came.
        """
        self.restore()
        if self._came:
            raise KeyboardInterrupt

    def restore(self) -> None:
        """Set the handler that was there before."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True
