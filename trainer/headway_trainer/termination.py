"""Ends the learner's process at once, without Python's teardown: after SIGTERM, success or failure.

The learner has made its state durable by then, or had nothing to save.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Final, NoReturn

EXIT: Final = 128 + signal.SIGTERM
AT_END: Final[list[Callable[[], object]]] = []
"""Functions to call just before the process ends, by itself or by SIGTERM. Each takes at most seconds."""


class ShutdownGuard:
    """Keeps SIGTERM from ending the process while a step is not durable.

    The training loop holds the guard. It checks `asked` regularly, saves its state, and exits with `EXIT`.
    The pod's grace period bounds how long this may take.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = False
        self._asked = threading.Event()

    @property
    def held(self) -> bool:
        """Whether the guard defers SIGTERM."""
        return self._held

    @property
    def asked(self) -> bool:
        """Whether SIGTERM came while the guard was held."""
        return self._asked.is_set()

    def set(self, held: bool) -> None:
        """Hold or release the guard. If SIGTERM came while it was held, the holder must still exit."""
        with self._lock:
            self._held = held

    def defers(self) -> bool:
        """Record that SIGTERM came, if the guard is held. Return whether the holder will end the process."""
        with self._lock:
            if self._held:
                self._asked.set()
            return self._held or self._asked.is_set()


SHUTDOWN_GUARD: Final = ShutdownGuard()
"""The guard of this process."""


def another_handles_sigterm() -> bool:
    """Whether another SIGTERM handler has replaced the one of `exit_on_sigterm`."""
    return signal.getsignal(signal.SIGTERM) is not _heard


def exit_on_sigterm(defers: Callable[[], bool] = SHUTDOWN_GUARD.defers) -> None:
    """Exit with code 143 on SIGTERM, even while the main thread waits inside a collective.

    It does not exit if `defers` returns True: then other code will end the process. Python runs signal
    handlers in the main thread, between two bytecode instructions. A main thread that waits in C++ never
    reaches the next one. So the interpreter writes the signal's number to a socket, and a thread reads it.
    Process 1 of a container needs a handler in any case: otherwise the kernel ignores SIGTERM. A second call
    changes nothing.
    """
    if signal.getsignal(signal.SIGTERM) is _heard:
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.signal(signal.SIGTERM, _heard)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def leave() -> None:
        while signal.SIGTERM not in reader.recv(16) or defers():
            continue
        writer.close()
        _last()
        os._exit(EXIT)

    threading.Thread(target=leave, name="termination", daemon=True).start()


def live(work: Callable[[], int | None]) -> NoReturn:
    """Do `work`, then call `end`, even if `work` raises an exception.

    The exit code is the result of `work` (0 for None), or the code of its SystemExit, as in Python. After any
    other exception it is 1, and the traceback is on standard error.
    """
    try:
        code = work() or 0
    except SystemExit as asked:
        if isinstance(asked.code, str):
            print(asked.code, file=sys.stderr)
        code = asked.code if isinstance(asked.code, int) else int(asked.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    end(code)


def end(code: int) -> NoReturn:
    """Exit with `code`, without the interpreter's teardown.

    Teardown destroys the threads of gloo and of the rendezvous store in no fixed order. Sometimes this aborts
    the process ("terminate called without an active exception") after it has finished or reported its error.
    """
    _last()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _last() -> None:
    for do in AT_END:
        do()


def _heard(number: int, frame: FrameType | None) -> None:
    """Do nothing: the thread that reads the socket handles the signal."""
