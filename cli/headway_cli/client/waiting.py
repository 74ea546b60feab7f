"""Waits for a job: how often a client asks for the result, and how long the cluster may be unavailable."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from headway_cli.cluster import UNREACHABLE_SECONDS, ClusterUnreachableError

LOOK_SECONDS: Final = 2.0
"""Seconds between two calls of `Waiting.look`."""
T = TypeVar("T")


class Waiting(Generic[T]):
    """One wait for a result. The caller itself sleeps between two calls of `look`, so a coroutine can be
    cancelled meanwhile."""

    def __init__(self, name: str, ask: Callable[[], T | None], timeout: float | None) -> None:
        """
        Args:
            name: name of the job.
            ask: returns the result; None while there is none.
            timeout: maximum seconds to wait; None for no limit.
        """
        self._name = name
        self._ask = ask
        self._timeout = timeout
        self._ends = None if timeout is None else time.monotonic() + timeout
        self._answered: float | None = None

    def look(self) -> T | None:
        """Ask once for the result; None if there is none yet.

        After its first answer, a cluster may be unreachable for UNREACHABLE_SECONDS.

        Raises:
            ClusterUnreachableError: the cluster has never answered, or is unreachable for longer.
        """
        try:
            found = self._ask()
        except ClusterUnreachableError:
            if self._answered is None or time.monotonic() - self._answered > UNREACHABLE_SECONDS:
                raise
            return None
        self._answered = time.monotonic()
        return found

    def pause(self) -> float:
        """Seconds to sleep before the next call of `look`.

        Raises:
            TimeoutError: the timeout is over.
        """
        if self._ends is None:
            return LOOK_SECONDS
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"{self._name} still runs after {self._timeout:g} s")
        return min(LOOK_SECONDS, left)
