"""Waits with a deadline. The error at the deadline names the awaited condition and shows a log."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from .errors import ClusterError

LOG_LINES_SHOWN = 15


def log_tail(log: Path, *, lines: int = LOG_LINES_SHOWN) -> str:
    """The end of the file `log`, indented for a message, or a line that says that there is no such file."""
    if not log.exists():
        return f"    ({log} does not exist)"
    kept = log.read_text(errors="replace").splitlines()[-lines:]
    return "\n".join(f"    {line[:400]}" for line in kept)


def wait_for(
    what: str,
    ready: Callable[[], bool],
    *,
    log: Path | None = None,
    alive: Callable[[], bool] = lambda: True,
    deadline_s: float = 60,
    every_s: float = 0.1,
) -> None:
    """Return once `ready()` returns True.

    Raises:
        ClusterError: at the deadline, or as soon as `alive()` returns False.
    """
    ends = time.monotonic() + deadline_s
    while not ready():
        died = not alive()
        if died or time.monotonic() > ends:
            reason = "the process ended" if died else f"nothing after {deadline_s:.0f} s"
            tail = f"\n  end of {log}:\n{log_tail(log)}" if log else ""
            raise ClusterError(
                f"waited for {what}: {reason}{tail}",
                fix="the log names the reason; `cluster.py down` clears what is left",
            )
        time.sleep(every_s)
