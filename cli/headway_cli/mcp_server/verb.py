"""Runs a command of `headway` as a process of its own.

Such a process imports the project's present code, and can be killed at a deadline.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Final

import psutil

from headway_cli.mcp_server.words import InvalidToolCallError

ERROR: Final = "headway: "
"""Prefix of an error message of `headway`."""
GRACE_SECONDS: Final = 1.5
"""Seconds that a command gets to end its own processes. MCP clients give a server only 2 seconds."""
LAST_LINES: Final = 10
WRONG: Final = 2
_running: set[subprocess.Popen[str]] = set()
_lock = threading.RLock()


class Call:
    """The processes that one call of a tool has started."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def let_go(self) -> None:
        """End the processes in a background thread: the client has cancelled the call."""
        threading.Thread(target=self._end, daemon=True).start()

    def _end(self) -> None:
        for each in self.processes:
            _end(each)


call: Final[ContextVar[Call | None]] = ContextVar("call", default=None)
"""The call of a tool that this thread or task answers; None outside of a call."""


def output(words: Sequence[str], seconds: float) -> str:
    """Run `headway` with the arguments `words`, and return its standard output.

    Args:
        words: the command and its options.
        seconds: maximum seconds that the command may take.

    Raises:
        InvalidToolCallError: the command reports an error, prints nothing, or takes longer.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "headway_cli", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        process_group=0,
    )
    with _lock:
        _running.add(process)
    if (asked_by := call.get()) is not None:
        asked_by.processes.append(process)
    try:
        out, noted = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        raise InvalidToolCallError(
            f"headway {words[0]} took more than {seconds:g} s and was ended: run it on the command line"
        ) from None
    finally:
        with _lock:
            _running.discard(process)
    lines = noted.splitlines()
    errors = [each.removeprefix(ERROR) for each in lines if each.startswith(ERROR)]
    if process.returncode == WRONG or not out:
        raise InvalidToolCallError(
            "\n".join(errors or lines[-LAST_LINES:]) or f"headway {words[0]} printed nothing"
        )
    return out


def end_all() -> None:
    """End every running command, with its processes. Each gets SIGINT, and later SIGKILL."""
    with _lock:
        running = [*_running]
    for each in running:
        _send_signal(each, signal.SIGINT)
    for each in running:
        _end(each)


def _end(process: subprocess.Popen[str]) -> None:
    _send_signal(process, signal.SIGINT)
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        below = _below(process.pid)  # some have their own session, so the signal to the group misses them
        _send_signal(process, signal.SIGKILL)
        process.wait()
        for each in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()


def _below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _send_signal(process: subprocess.Popen[str], what: signal.Signals) -> None:
    try:
        os.killpg(process.pid, what)
    except ProcessLookupError:
        return
