"""The keyed queue: coalescing, one worker for each key, fairness, backoff. Time is a number here."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway_operator.queue import MAX_BACKOFF_SECONDS, KeyedQueue, QueueClosedError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> KeyedQueue[str]:
    return KeyedQueue(clock)


def test_a_key_added_twice_is_worked_on_once(queue: KeyedQueue[str]) -> None:
    queue.add("a")
    queue.add("a")
    assert queue.get(0) == "a"
    queue.done("a")
    assert queue.get(0) is None


def test_a_key_is_never_given_to_two_workers(queue: KeyedQueue[str]) -> None:
    queue.add("a")
    assert queue.get(0) == "a"
    queue.add("a")
    assert queue.get(0) is None
    queue.done("a")
    assert queue.get(0) == "a"


def test_a_busy_key_goes_behind_the_others(queue: KeyedQueue[str], clock: Clock) -> None:
    queue.add("noisy")
    assert queue.get(0) == "noisy"
    queue.add("noisy")
    clock.now = 1
    queue.add("quiet")
    queue.done("noisy")
    assert queue.get(0) == "quiet"


def test_the_earlier_moment_wins(queue: KeyedQueue[str], clock: Clock) -> None:
    queue.add("a", 10)
    queue.add("a", 1)
    queue.add("a", 5)
    clock.now = 1
    assert queue.get(0) == "a"
    queue.done("a")
    clock.now = 100
    assert queue.get(0) is None


def test_backoff_doubles_and_is_forgotten(queue: KeyedQueue[str], clock: Clock) -> None:
    pauses = []
    for _ in range(12):
        queue.add("a")
        assert queue.get(0) == "a"
        pauses.append(queue.retry("a"))
        clock.now += 1000
        assert queue.get(0) == "a"
        queue.add("a")
        pauses.append(queue.retry("a"))
        clock.now += 1000
    assert pauses[:4] == [0.2, 0.4, 0.8, 1.6]
    assert max(pauses) == MAX_BACKOFF_SECONDS
    assert queue.get(0) == "a"
    queue.done("a")
    queue.add("a")
    assert queue.get(0) == "a"
    assert queue.retry("a") == 0.2


def test_an_event_does_not_wait_for_the_backoff(queue: KeyedQueue[str]) -> None:
    queue.add("a")
    queue.get(0)
    queue.retry("a")
    assert queue.get(0) is None
    queue.add("a")
    assert queue.get(0) == "a"


def test_depth_counts_busy_keys_and_oldest_wait_does_not(queue: KeyedQueue[str], clock: Clock) -> None:
    queue.add("a")
    queue.add("b")
    queue.add("later", 60)
    assert queue.get(0) == "a"
    clock.now = 7
    assert queue.depth() == 2
    assert queue.oldest_wait() == 7


def test_closing_wakes_every_worker(queue: KeyedQueue[str]) -> None:
    ended = []

    def work() -> None:
        with pytest.raises(QueueClosedError):
            queue.get()
        ended.append(True)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    queue.close()
    for worker in workers:
        worker.join(timeout=10)
    assert len(ended) == 3


@settings(max_examples=25)
@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=60), st.integers(1, 4))
def test_every_key_is_worked_on_and_never_twice_at_once(keys: list[str], count: int) -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    guard, working, overlaps, worked = threading.Lock(), Counter[str](), [], Counter[str]()

    def work() -> None:
        with contextlib.suppress(QueueClosedError):
            while (key := queue.get()) is not None:
                with guard:
                    working[key] += 1
                    worked[key] += 1
                    overlaps.append(working[key])
                with guard:
                    working[key] -= 1
                queue.done(key)

    workers = [threading.Thread(target=work) for _ in range(count)]
    for worker in workers:
        worker.start()
    for key in keys:
        queue.add(key)
    while queue.depth():
        time.sleep(0.001)
    queue.close()
    for worker in workers:
        worker.join(timeout=30)
    assert set(worked) == set(keys)
    assert max(overlaps) == 1
    assert all(worked[key] <= keys.count(key) for key in worked)
