"""Background work such as a checkpoint's upload: one piece at a time, and its failure is not lost."""

from __future__ import annotations

import threading

import pytest

from headway_trainer.checkpoint.background import Background


def test_the_next_piece_of_work_waits_for_the_one_before() -> None:
    background, free, done = Background(), threading.Event(), list[str]()

    def first() -> None:
        free.wait(10)
        done.append("first")

    background.start(first)
    assert done == []
    threading.Timer(0.05, free.set).start()
    background.start(lambda: done.append("second"))
    assert done[0] == "first"
    background.wait()
    assert done == ["first", "second"]


def test_a_failure_is_raised_once_by_the_wait() -> None:
    background = Background()

    def broken() -> None:
        raise ConnectionError("the store is unavailable")

    background.start(broken)
    with pytest.raises(ConnectionError, match="the store is unavailable"):
        background.wait()
    background.wait()


def test_a_failure_is_raised_by_a_check_during_training() -> None:
    background, failed = Background(), threading.Event()

    def broken() -> None:
        failed.set()
        raise ConnectionError("the store is unavailable")

    background.start(broken)
    failed.wait(10)
    with pytest.raises(ConnectionError):  # noqa: PT012 - it fails a moment after it said so
        while True:
            background.raise_failure()


def test_running_work_raises_nothing() -> None:
    background, free = Background(), threading.Event()

    def work() -> None:
        free.wait(10)

    background.start(work)
    background.raise_failure()
    free.set()
    background.wait()
