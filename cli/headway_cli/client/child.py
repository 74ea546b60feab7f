"""Starts and ends the process that runs a client's local job.

The child has a process group of its own, so that Ctrl-C, which interrupts a notebook's cell, does not reach
it. The child ends with its parent. A parent that exits ends its children in order. If the parent is killed,
the child notices and ends itself (`child_main`). Acknowledged work remains in the job's folder, and the next
run continues from there.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from headway_cli.local.pod import kill_all, left_over

END_SECONDS: Final = 60.0
"""Maximum seconds that a job may take to end before its process is killed."""


@dataclass(frozen=True)
class Child:
    """The process that runs a job, and its output."""

    process: subprocess.Popen[bytes]
    output: IO[bytes]
    """The process's stdout, with the job's progress. The first line means that the job has begun."""
    notes: IO[bytes]
    """The process's stderr."""

    @classmethod
    def start(cls, words: Sequence[str]) -> Child:
        """Start `headway` with the arguments `words`."""
        output, notes = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  # closed with it
        command = [sys.executable, "-m", "headway_cli.client.child_main", *words]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=notes, process_group=0
        )
        return cls(process, output, notes)

    @property
    def code(self) -> int | None:
        """The process's exit code; None while it runs."""
        return self.process.poll()

    @property
    def has_begun(self) -> bool:
        """Whether the process has begun the job."""
        return os.fstat(self.output.fileno()).st_size > 0

    @property
    def noted(self) -> list[str]:
        """Lines that the process has written to stderr."""
        file = self.notes.fileno()
        # The process shares the file offset and writes there, so reading must not move the offset.
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace").splitlines()

    def let_go(self) -> None:
        """Ask the process to end the job, without waiting."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def end(self) -> None:
        """Ask the process to end the job, and wait for its end. Kill the process after END_SECONDS."""
        self.let_go()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


children: dict[Path, Child] = {}
"""The children of this process, by the job's folder. Without a reference from here, a child's stdin would be
closed, which would end the child."""


@atexit.register
def _end_all() -> None:
    running = {folder: child for folder, child in children.items() if child.code is None}
    for child in running.values():  # ask all of them at once
        child.let_go()
    for folder, child in running.items():
        child.end()
        kill_all(left_over(folder))
