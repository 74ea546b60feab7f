"""A queue of keys: each key is queued once, held by one worker at a time, and retried with backoff.

A key that is added while it waits remains one entry. A key that is added while a worker has it runs once more
afterwards, behind every other key. So a job that changes all the time cannot starve the rest. An earlier due
time replaces a later one. The length needs no limit, since there are only as many keys as jobs.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from headway_api.backoff import doubled

Key = TypeVar("Key")

BACKOFF_FIRST_SECONDS = 0.2
MAX_BACKOFF_SECONDS = 60.0


class QueueClosedError(Exception):
    """The queue takes no more work."""


class KeyedQueue(Generic[Key]):
    """A thread-safe queue of keys. `clock` returns seconds, and tests replace it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._due: dict[Key, float] = {}
        """Waiting key -> when it may run, by `clock`."""
        self._heap: list[tuple[float, int, Key]] = []
        """(due time, ticket, key). An entry is stale if `_due` has another time for its key."""
        self._ticket = itertools.count()
        self._working: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._closed = False

    def add(self, key: Key, after: float = 0.0) -> None:
        """Queue `key`, due `after` seconds from now at the latest."""
        due = self._clock() + after
        with self._changed:
            if key not in self._due or due < self._due[key]:
                self._due[key] = due
                heapq.heappush(self._heap, (due, next(self._ticket), key))
                self._changed.notify()

    def get(self, timeout: float | None = None) -> Key | None:
        """The next key that is due; None after `timeout` seconds. Call `done` or `retry` with the key.

        Raises:
            QueueClosedError: the queue was closed.
        """
        deadline = None if timeout is None else self._clock() + timeout
        with self._changed:
            while not self._closed:
                key = self._pop()
                if key is not None:
                    self._working.add(key)
                    return key
                wait = self._pause(deadline)
                if wait is not None and wait <= 0:
                    return None
                self._changed.wait(wait)
            raise QueueClosedError

    def _pop(self) -> Key | None:
        busy = []
        found: Key | None = None
        while self._heap and self._heap[0][0] <= self._clock():
            due, ticket, key = heapq.heappop(self._heap)
            if self._due.get(key) != due:
                continue
            if key in self._working:
                busy.append((due, ticket, key))
                continue
            del self._due[key]
            found = key
            break
        for entry in busy:
            heapq.heappush(self._heap, entry)
        return found

    def _pause(self, deadline: float | None) -> float | None:
        now = self._clock()
        moments = [
            due for due, _, key in self._heap if key not in self._working and self._due.get(key) == due
        ]
        if moments and (first := min(moments)) > now and (deadline is None or first < deadline):
            return first - now
        return None if deadline is None else deadline - now

    def done(self, key: Key) -> None:
        """Note that the key's work succeeded, and forget its backoff."""
        with self._changed:
            self._failures.pop(key, None)
            self._release(key)

    def retry(self, key: Key) -> float:
        """Queue a key whose work failed, after a pause that doubles each time. Returns the seconds."""
        with self._changed:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            self._release(key)
        pause = doubled(failures, BACKOFF_FIRST_SECONDS, MAX_BACKOFF_SECONDS)
        self.add(key, pause)
        return pause

    def _release(self, key: Key) -> None:
        self._working.discard(key)
        if key in self._due:
            # Queue it behind the keys that became due in the meantime.
            due = max(self._due[key], self._clock())
            self._due[key] = due
            heapq.heappush(self._heap, (due, next(self._ticket), key))
        self._changed.notify_all()

    def close(self) -> None:
        """Make every `get` raise."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def depth(self) -> int:
        """Number of keys that are due or being processed."""
        with self._changed:
            now = self._clock()
            return len(self._working) + sum(due <= now for due in self._due.values())

    def oldest_wait(self) -> float:
        """Seconds for which the oldest due key has waited. Keys that are being processed do not count."""
        with self._changed:
            now = self._clock()
            return max((now - due for key, due in self._due.items() if key not in self._working), default=0.0)
