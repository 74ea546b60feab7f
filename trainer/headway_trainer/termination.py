"""How the learner ends: at once, when it is told to and when it is done; what counts is durable by then."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
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


def end() -> NoReturn:
    """Leave with code 0 and without tearing the interpreter down.

    Teardown destroys the threads of gloo and of the rendezvous store in no order, which now and then aborts
    ("terminate called without an active exception") a process whose work is done.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _heard(number: int, frame: FrameType | None) -> None:
    """Do nothing: the thread that reads the socket acts."""
