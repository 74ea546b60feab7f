"""Processes that run the author's code: they end within their time, and leave no process behind."""

from __future__ import annotations

import subprocess

from headway_sandbox import process as processes


def ended(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Wait for a process that leads its own session. Return its exit code, or None if it had to be ended."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its descendants, which may have left its session; no effect if it has ended."""
    if process.poll() is not None:
        return
    left = processes.living(process.pid)
    processes.kill(process.pid, group=True)
    for pid in left:
        processes.kill(pid)
    process.wait()
