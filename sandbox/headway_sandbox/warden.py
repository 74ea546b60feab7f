"""The parent of a sandboxed agent: adopts what it leaves behind, and lets none of it outlive the episode.

    python3 -I -S warden.py COMMAND ARGUMENT...

Without it an agent's orphans would fall to the sandbox's server, the first process of the pod, which cannot
wait for children it did not start without taking from an environment's tools the exit status of theirs.

Standard input is a socket to the server. The warden says there, once, STARTED or an errno and its words; when
the socket ends, with the server or at its wish, it kills the agent. However the agent ends, the warden kills
all that descends from it, and then ends with its exit status, or 128 + n where signal n ended it.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import os
import signal
import sys
import time

STARTED = b"started"
NOT_STARTED = 127
KILL_SECONDS = 5.0
"""How long to hunt a program that starts processes faster than they are killed."""
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
CONTROL = 0


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process; raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, *(ctypes.c_ulong(number) for number in (value, 0, 0, 0))) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def main(command: list[str]) -> int:
    """Run `command` to its end; its exit status."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        program = os.posix_spawnp(
            command[0],
            command,
            os.environ,
            file_actions=[(os.POSIX_SPAWN_OPEN, CONTROL, os.devnull, os.O_RDONLY, 0)],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # which Python ignores, and a child would too
        )
    except OSError as error:
        os.write(CONTROL, f"{error.errno} {error.strerror}".encode())
        return NOT_STARTED
    _thread.start_new_thread(end_with_the_server, ())
    with contextlib.suppress(OSError):  # the server is gone: the thread above is told too
        os.write(CONTROL, STARTED)
    while (ended := os.wait())[0] != program:
        pass
    kill_until_none_is_left()
    return exit_status(os.waitstatus_to_exitcode(ended[1]))


def end_with_the_server() -> None:
    """Wait for the socket's end; the rest follows from the program's."""
    with contextlib.suppress(OSError):
        os.read(CONTROL, 1)
    kill_descendants()


def kill_until_none_is_left() -> None:
    """Kill and reap: orphans become children here, so that no child means no descendant."""
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        kill_descendants()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def kill_descendants() -> None:
    """Kill every process that descends from this one, as far as /proc shows them at this moment."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                children.setdefault(parent_in(file.read()), []).append(int(name))
    found = children.get(os.getpid(), [])
    for pid in found:  # grows while it is walked
        found += children.get(pid, [])
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def parent_in(stat: bytes) -> int:
    """The parent in a line of /proc/PID/stat; the name before it may hold blanks and brackets."""
    return int(stat.rpartition(b")")[2].split()[1])


def exit_status(code: int) -> int:
    """As a shell says it, from how Python does (a signal is a negative number)."""
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
