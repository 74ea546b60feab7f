"""How the learner ends: at once, told to, done or failed; what counts is durable by then."""

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


def exit_on_sigterm() -> None:
    """Leave with code 143 on SIGTERM, even while the main thread waits inside a collective.

    Python runs signal handlers in the main thread, between two instructions of its own; a main thread that
    waits in C++ never gets there. So the interpreter writes the signal's number to a socket, and a thread
    reads it. As process 1 of a container a handler is needed at all: the kernel ignores SIGTERM otherwise.
    Asking twice changes nothing.
    """
    if signal.getsignal(signal.SIGTERM) is _heard:
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.signal(signal.SIGTERM, _heard)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def leave() -> None:
        while signal.SIGTERM not in reader.recv(16):
            continue
        writer.close()
        os._exit(EXIT)

    threading.Thread(target=leave, name="termination", daemon=True).start()


def live(work: Callable[[], int | None]) -> NoReturn:
    """Do `work` and `end`, however it went.

    The exit code is what `work` returns (None: 0) or raises as SystemExit, as Python has it. After any other
    error it is 1, and the traceback is on standard error.
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
    """Leave with `code` and without tearing the interpreter down.

    Teardown destroys the threads of gloo and of the rendezvous store in no order, which now and then aborts
    ("terminate called without an active exception") a process whose work is done or whose error is told.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _heard(number: int, frame: FrameType | None) -> None:
    """Do nothing: the thread that reads the socket acts."""
