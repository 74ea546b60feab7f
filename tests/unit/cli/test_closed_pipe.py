"""A command notices that the reader of its output has ended, whatever it waits for."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from headway_cli import closed_pipe
from headway_cli.closed_pipe import ClosedPipeError

PATIENCE_S = 60


@pytest.fixture
def read_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The reader's end of the pipe that stands for standard output."""
    reader, writer = os.pipe()
    monkeypatch.setattr(closed_pipe, "out", lambda: writer)
    yield reader
    os.close(writer)


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_signal_that_interrupts_nothing_is_sent_again(
    monkeypatch: pytest.MonkeyPatch, read_end: int, lost: int
) -> None:
    """A signal that arrives just before a system call runs no handler until the call returns."""
    send, sent = signal.pthread_kill, []

    def losing(thread: int, number: int) -> None:
        sent.append(number)
        if len(sent) > lost:
            send(thread, number)

    monkeypatch.setattr(signal, "pthread_kill", losing)
    before = signal.getsignal(signal.SIGPIPE)

    def wait() -> None:
        with closed_pipe.interrupted_when_reader_ends():
            os.close(read_end)
            time.sleep(PATIENCE_S)

    with pytest.raises(ClosedPipeError):
        wait()
    assert len(sent) > lost
    assert signal.getsignal(signal.SIGPIPE) is before


def test_a_broken_connection_is_not_the_reader(read_end: int) -> None:
    with closed_pipe.interrupted_when_reader_ends():
        signal.pthread_kill(threading.get_ident(), signal.SIGPIPE)
    os.close(read_end)
