"""How a client waits for a run: how often it looks, and how long the cluster may be unavailable."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from headway_cli.cluster import UNREACHABLE_SECONDS, ClusterUnreachableError

LOOK_SECONDS: Final = 2.0
"""Seconds between two looks."""
T = TypeVar("T")


class Waiting(Generic[T]):
    """One wait. The caller sleeps between looks, so that a coroutine can be cancelled meanwhile."""

    def __init__(self, name: str, ask: Callable[[], T | None], timeout: float | None) -> None:
        """
        Args:
            name: name of the job.
            ask: returns its result; None before there is one.
            timeout: in seconds; None: no limit.
        """
        self._name = name
        self._ask = ask
        self._timeout = timeout
        self._ends = None if timeout is None else time.monotonic() + timeout
        self._answered: float | None = None

    def look(self) -> T | None:
        """The result, if there is one. A cluster that has answered may be down for UNREACHABLE_SECONDS.

        Raises:
            ClusterUnreachableError: it never answered, or is down for longer.
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
        """Seconds until the next look.

        Raises:
            TimeoutError: the time is over.
        """
        if self._ends is None:
            return LOOK_SECONDS
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"{self._name} still runs after {self._timeout:g} s")
        return min(LOOK_SECONDS, left)
