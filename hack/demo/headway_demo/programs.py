"""Builds the cluster's programs in a separate process. A first run spends most of its time on this build.

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
"""Environment variable with the id of a child process that already builds the programs."""


@dataclass
class Build:
    """A build in a separate process with its own session."""

    pid: int
    log: Path
    _over: bool = False

    def wait(self) -> None:
        """Wait for the build, and print the seconds of each program.

        Raises:
            CalledProcessError: the build failed.
        """
        _, status = os.waitpid(self.pid, 0)
        self._over = True
        print(self.log.read_text(), end="", flush=True)
        if code := os.waitstatus_to_exitcode(status):
            raise subprocess.CalledProcessError(code, COMMAND)

    def end(self) -> None:
        """Kill the build and its processes, unless it has ended."""
        if self._over:
            return
        self._over = True
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def log() -> Path:
    """Path of the build's log file."""
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
    """Provide a build during the block: the one that an earlier process began, or a new one."""
    begun = os.environ.pop(BEGUN, None)
    build = begin() if begun is None else Build(int(begun), log())
    try:
        yield build
    finally:
        build.end()
