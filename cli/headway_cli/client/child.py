"""The process that runs a local job of a client, and its end.

It is in a process group of its own: Ctrl-C, which interrupts a cell of a notebook, does not reach it. It ends
with the process that began it: in order at that one's exit, and by itself where that one was killed (`kept`).
What it has acknowledged stays in the job's folder, and the next run goes on from there.
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
"""How long a job that is told to end may take, before it is killed."""


@dataclass(frozen=True)
class Child:
    """The process that runs a job, and what it has said."""

    process: subprocess.Popen[bytes]
    said: IO[bytes]
    """Its progress: the first line of it says that the job has begun."""
    notes: IO[bytes]
    """Its stderr."""

    @classmethod
    def start(cls, words: Sequence[str]) -> Child:
        """Run `headway` with some words."""
        said, notes = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  # closed with it
        command = [sys.executable, "-m", "headway_cli.client.kept", *words]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=notes, process_group=0)
        return cls(process, said, notes)

    @property
    def code(self) -> int | None:
        """Exit code; None while it runs."""
        return self.process.poll()

    @property
    def has_begun(self) -> bool:
        """Whether it has taken the job up."""
        return os.fstat(self.said.fileno()).st_size > 0

    @property
    def noted(self) -> list[str]:
        """Lines of its stderr."""
        file = self.notes.fileno()
        # The process writes at the same offset, so it must not be moved.
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace").splitlines()

    def let_go(self) -> None:
        """Have it end the job. Does not wait."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def end(self) -> None:
        """Have it end the job, and wait until it has; or kill it after END_SECONDS."""
        self.let_go()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


children: dict[Path, Child] = {}
"""Of this process, by the job's folder. One that nobody held would end."""


@atexit.register
def _end_all() -> None:
    running = {folder: child for folder, child in children.items() if child.code is None}
    for child in running.values():  # all are told at once
        child.let_go()
    for folder, child in running.items():
        child.end()
        kill_all(left_over(folder))
