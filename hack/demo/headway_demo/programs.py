"""Builds the cluster's programs from source in a process beside the demo: most of the time of a first run.

Standard library only: `begin.py` runs it before there is a Python environment.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
COMMAND = ("/usr/bin/python3", str(ROOT / "hack" / "cluster" / "cluster.py"), "build", "--demo")
BEGUN = "HEADWAY_PROGRAMS_PID"
"""Variable with the process that builds them already: a child of this one."""


@dataclass
class Build:
    """A build that runs beside this process, in a session of its own."""

    pid: int
    log: Path
    _over: bool = False

    def wait(self) -> None:
        """Wait for it, and print what each program took.

        Raises:
            CalledProcessError: it failed.
        """
        _, status = os.waitpid(self.pid, 0)
        self._over = True
        print(self.log.read_text(), end="", flush=True)
        if code := os.waitstatus_to_exitcode(status):
            raise subprocess.CalledProcessError(code, COMMAND)

    def end(self) -> None:
        """End it with everything that it started, unless it is over."""
        if self._over:
            return
        self._over = True
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def log() -> Path:
    """Where the build writes."""
    return Path(os.environ.get("HEADWAY_CACHE") or Path.home() / ".cache" / "headway") / "programs.log"


def begin() -> Build:
    """Begin a build."""
    log().parent.mkdir(parents=True, exist_ok=True)
    with log().open("w") as output:
        flags = [(os.POSIX_SPAWN_DUP2, output.fileno(), 1), (os.POSIX_SPAWN_DUP2, output.fileno(), 2)]
        pid = os.posix_spawn(COMMAND[0], COMMAND, os.environ, file_actions=flags, setsid=True)
    return Build(pid, log())


@contextmanager
def building() -> Iterator[Build]:
    """A build during the block: the one that was begun before this process, or a new one."""
    begun = os.environ.pop(BEGUN, None)
    build = begin() if begun is None else Build(int(begun), log())
    try:
        yield build
    finally:
        build.end()
