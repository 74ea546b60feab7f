"""Kernel calls with which server and runner protect their own process, and end those of the model's code.

This module uses only the standard library without `ctypes`: each episode pays for its server's imports.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
SWEEP_SECONDS = 5.0
"""Seconds after which to stop killing programs that start processes faster than they are killed."""
SWEEP_PAUSE_SECONDS = 0.005


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process (`man 2 prctl`).

    Raises:
        OSError: the kernel refused.
    """
    import _ctypes

    program = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # like dlopen(3): the program itself
    function = _ctypes.dlsym(program, "prctl")
    if _ctypes.call_cdeclfunction(function, (option, value, 0, 0, 0)) != 0:
        raise OSError(f"prctl({option}, {value}) was refused")


def hide() -> None:
    """Make this process unreadable to others of its user: no ptrace, memory, variables or descriptors.

    Its files in /proc belong to root from then on. A program that it starts is readable again.
    """
    prctl(PR_SET_DUMPABLE, 0)


def adopt_orphans() -> None:
    """Become the parent of descendants that lose their own parent."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def sweep(*, everything: bool) -> int:
    """Kill until no process is left, for at most `SWEEP_SECONDS`; returns the number that are left.

    `everything`: kill all of this PID namespace, whose first process this is. Otherwise kill its descendants.
    """
    deadline = time.monotonic() + SWEEP_SECONDS
    while True:
        if everything:
            assert os.getpid() == 1, (
                "outside a PID namespace of its own, this would kill every process of the machine"
            )
            with contextlib.suppress(ProcessLookupError):  # there was no process
                os.kill(-1, signal.SIGKILL)
        left = living(everything=everything)
        if not left or time.monotonic() > deadline:
            return len(left)
        for pid in left:
            kill(pid)
        time.sleep(SWEEP_PAUSE_SECONDS)


def living(of: int | None = None, *, everything: bool = False) -> list[int]:
    """Descendants of `of` (by default this process), or all others, from /proc. Zombies are excluded."""
    table = dict(processes())
    if everything:
        return [pid for pid, (state, _) in table.items() if pid != os.getpid() and state not in "ZX"]
    children: dict[int, list[int]] = {}
    for pid, (_, parent) in table.items():
        children.setdefault(parent, []).append(pid)
    found = list(children.get(of or os.getpid(), []))
    for pid in found:  # the list grows during the loop
        found += children.get(pid, [])
    return [pid for pid in found if table[pid][0] not in "ZX"]


def processes() -> Iterator[tuple[int, tuple[str, int]]]:
    """Every process that /proc shows: (pid, (state, parent))."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                yield int(name), state_and_parent(file.read())


def state_and_parent(stat: bytes) -> tuple[str, int]:
    """State and parent from a line of /proc/PID/stat. The name before them may have blanks and brackets."""
    state, parent = stat.rpartition(b")")[2].split()[:2]
    return state.decode(), int(parent)


def kill(pid: int, *, group: bool = False) -> None:
    """Send SIGKILL to a process, or to the group that it leads. A process that is gone is not an error."""
    with contextlib.suppress(OSError):
        (os.killpg if group else os.kill)(pid, signal.SIGKILL)


def exit_status(code: int) -> int:
    """A shell's exit status from Python's return code, in which a signal is a negative number."""
    return code if code >= 0 else 128 - code
