"""Finds out which signal killed one of vLLM's processes, and in which call: pure functions.

vLLM's front process (the API server) starts EngineCore, which starts workers if it needs several. If one
process dies of a signal, the others end too, and the front process ends with exit code 0 or 1. So the signal
is read from the output: from faulthandler's dump, and from the exit codes that vLLM reports.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

FATAL: Final = re.compile(r"Fatal Python error: (?P<words>[A-Z][a-z]+(?: [a-z]+)*)")
SIGNALS: Final = {
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
    "Segmentation fault": signal.SIGSEGV,
}
"""The signals that faulthandler handles, by the name that it prints."""
SEGFAULT: Final = "Segfault encountered"
"""Printed by tvm_ffi's handler of SIGSEGV, which replaces faulthandler's if tvm_ffi is imported later."""
THREAD: Final = re.compile(r"(?P<which>Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):")
FRAME: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')
"""A frame of faulthandler's dump. A frame of a traceback does not match: it has a comma before `in`."""
DUMP_END: Final = "Extension modules:"
ROLES: Final = (
    ("worker_main", "worker"),
    ("run_engine_core", "EngineCore"),
    ("openai/api_server.py", "API server"),
)
"""Names of functions, and ends of file names, in the main thread's frames; each with its process's role."""
SOME: Final = "a process of vLLM"
LIBRARIES: Final = re.compile(r".*/(?:site-packages|dist-packages|python3\.\d+)/")
OURS: Final = ("vllm/", "headway_rollout/")

WORKER_EXIT: Final = re.compile(
    r"Worker proc (?P<name>\S+) died unexpectedly \(exit code: -(?P<signal>\d+)\)"
)
CORE_EXIT: Final = re.compile(r"Failed core proc\(s\): \{.*?'(?P<name>[^']+)': -(?P<signal>\d+)")
CORE_GONE: Final = "engine core exited unexpectedly"
"""vLLM prints this if EngineCore ended without reporting why."""
MEMORY: Final = (
    "; if memory ran out, raise the memory limit in spec.rollout.resources (of a judge: model.resources)"
)


@dataclass(frozen=True)
class Death:
    """How one of vLLM's processes died."""

    process: str
    """Name of the process, such as "vLLM's worker", as a message begins with it."""
    signal: int | None
    """None if the output does not name the signal: only SIGKILL leaves no trace."""
    place: str | None = None
    """The call that ran, as `function (file:line)`; None if unknown."""

    @property
    def sentence(self) -> str:
        """The death as an error message describes it."""
        if self.signal is None:
            return f"{self.process} ended without an error, like a process that gets SIGKILL{MEMORY}"
        where = f" in {self.place}" if self.place else ""
        return (
            f"{self.process} died of {name_of(self.signal)}{where}{MEMORY * (self.signal == signal.SIGKILL)}"
        )


@dataclass
class Thread:
    """A thread in faulthandler's dump."""

    current: bool
    """Whether this thread got the signal."""
    frames: list[re.Match[str]] = field(default_factory=list)
    """Matches of `FRAME`, the innermost call first."""


def name_of(number: int) -> str:
    """A signal in words, such as `SIGILL (illegal instruction)`; `signal 99` if it has no name."""
    if number not in set(signal.Signals):
        return f"signal {number}"
    words = signal.strsignal(number)
    return f"{signal.Signals(number).name} ({(words or '').lower()})"


def find(code: int, lines: Sequence[str]) -> Death | None:
    """The first death of a vLLM process by a signal; None if no signal killed one.

    Args:
        code: vLLM's exit code, or 128 + the signal that killed its front process.
        lines: lines of its output, oldest first.
    """
    if found := in_output(lines):
        return found
    if any(CORE_GONE in line for line in lines):
        return Death("vLLM's EngineCore", None)
    return Death("vLLM", code - 128) if code > 128 else None


def in_output(lines: Sequence[str]) -> Death | None:
    """The first death whose signal the output `lines` name; None if there is none."""
    dumps = [_dump(match, lines[at + 1 :]) for at, line in enumerate(lines) if (match := FATAL.search(line))]
    dump = next((one for one in dumps if one is not None and one.process != SOME), None)
    dump = dump or next((one for one in dumps if one is not None), None)
    if dump is None and any(SEGFAULT in line for line in lines):
        dump = Death(SOME, signal.SIGSEGV)
    reported = next((match for line in lines if (match := _exit(line))), None)
    if reported is None:
        return dump
    exited = Death(f"vLLM's {reported['name']}", int(reported["signal"]))
    if dump is None:
        return exited
    return replace(exited, place=dump.place) if exited.signal == dump.signal else dump


def begins(line: str) -> bool:
    """Whether a line is the first to report a death."""
    return bool(FATAL.search(line) or _exit(line)) or SEGFAULT in line or CORE_GONE in line


def of_core(line: str) -> bool:
    """Whether a line says that EngineCore is gone. After such a line vLLM answers no request successfully."""
    return CORE_GONE in line


def _dump(fatal: re.Match[str], lines: Sequence[str]) -> Death | None:
    number = SIGNALS.get(fatal["words"])
    threads = _threads(lines)
    return Death(_process(threads), number, _place(threads)) if number is not None else None


def _exit(line: str) -> re.Match[str] | None:
    return WORKER_EXIT.search(line) or CORE_EXIT.search(line)


def _threads(lines: Sequence[str]) -> list[Thread]:
    """The threads of faulthandler's first dump in `lines`, the main thread last.

    Lines of other processes may be mixed in, and are skipped.
    """
    threads: list[Thread] = []
    for line in lines:
        if DUMP_END in line or FATAL.search(line):
            break
        if header := THREAD.search(line):
            threads.append(Thread(current=header["which"].startswith("Current")))
        elif threads and (frame := FRAME.search(line)):
            threads[-1].frames.append(frame)
    return threads


def _process(threads: Sequence[Thread]) -> str:
    # A forked process has its parent's frames below its own, so the innermost match decides.
    for frame in threads[-1].frames if threads else []:
        for mark, role in ROLES:
            if mark == frame["function"] or frame["file"].endswith(mark):
                return f"vLLM's {role}"
    return SOME


def _place(threads: Sequence[Thread]) -> str | None:
    """The innermost call in code of vLLM or Headway. Deeper frames are wrappers of torch or of Python."""
    # If a thread of OpenMP got the signal, no Python thread is marked as current. The main thread, which
    # waits for the OpenMP thread, then shows the call.
    crashed = next((thread for thread in threads if thread.current), threads[-1] if threads else None)
    if crashed is None or not crashed.frames:
        return None
    named = [(frame["function"], LIBRARIES.sub("", frame["file"]), frame["line"]) for frame in crashed.frames]
    function, file, line = next((one for one in named if one[1].startswith(OURS)), named[0])
    return f"{function} ({file}:{line})"
