"""Runs between the rollout server and vLLM so that no engine process outlives the server.

    python -m headway_rollout.guard COMMAND...

The guard leads a process group of its own, in which vLLM and vLLM's workers run. Its standard input is a pipe
that nobody writes to. When the server dies, however suddenly, the pipe closes and the guard kills the whole
group, itself included. Conversely, the server kills the group when the guard ends.

The guard imports only the standard library, so that it watches the server from the first moment.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from types import FrameType
from typing import Final

PR_SET_PDEATHSIG: Final = 1


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def kill_group_at_end_of_input() -> None:
    """Wait until the server's end of the pipe closes, then kill the whole group."""
    while os.read(0, 1024):
        pass
    os.killpg(0, signal.SIGKILL)


def main(command: list[str]) -> int:
    """Run `command` to its end. Return its exit code, or 128 + the signal that killed it."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    # Fork from the main thread: the kernel sends the death signal when the forking thread ends.
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)

    def forward(number: int, _frame: FrameType | None) -> None:
        child.send_signal(number)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, forward)
    threading.Thread(target=kill_group_at_end_of_input, daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
