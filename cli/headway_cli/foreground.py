"""Runs a program until it ends, or until a person ends it, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Final

GRACE_SECONDS: Final = 20.0
"""Maximum seconds that a program may take to end after SIGINT."""


def run(argv: Sequence[str], env: Mapping[str, str], log: IO[bytes] | None = None) -> int | None:
    """Run a program. Return its exit status; None if Ctrl-C, SIGTERM or a closed terminal ended it.

    The program has a process group of its own, so that Ctrl-C reaches it only once, through this function.

    Args:
        argv: the program and its arguments.
        env: the program's environment variables.
        log: receives the program's output; None for this process's own stdout and stderr.
    """
    with interrupts():
        process = subprocess.Popen(argv, env=dict(env), stdout=log, stderr=log, process_group=0)
        try:
            return process.wait()
        except KeyboardInterrupt:
            return None
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program, and kill the rest of its process group."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(GRACE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def interrupts() -> Iterator[None]:
    """Make SIGTERM and a closed terminal (SIGHUP) raise KeyboardInterrupt, like Ctrl-C."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
