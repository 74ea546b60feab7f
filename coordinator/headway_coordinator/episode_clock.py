"""Notes what an episode waits for, and when."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from headway_api.records import MAX_SPANS, EpisodeSpan, SpanKind

NAME_LENGTH: Final = 128


class EpisodeClock:
    """The clock of one episode: seconds since its start, from a monotonic clock."""

    def __init__(self) -> None:
        self.spans: list[EpisodeSpan] = []
        """The waits so far, in the order in which they ended."""
        self._start = time.monotonic()

    def restart(self) -> None:
        """Count from now, because the episode starts."""
        self._start = time.monotonic()

    def begin(self, kind: SpanKind, name: str = "", least: float = 0.0) -> Callable[[], None]:
        """Begin a wait. Call what this returns when the wait is over; calling it again does nothing.

        Args:
            least: seconds; a shorter wait is not noted.
        """
        began, over = time.monotonic(), False

        def end() -> None:
            nonlocal over
            now = time.monotonic()
            if not over and len(self.spans) < MAX_SPANS and now - began >= least:
                begun, ended = max(0.0, began - self._start), max(0.0, now - self._start)
                self.spans.append(EpisodeSpan(kind=kind, name=name[:NAME_LENGTH], began=begun, ended=ended))
            over = True

        return end

    @contextmanager
    def timed(self, kind: SpanKind, name: str = "", least: float = 0.0) -> Iterator[None]:
        """Note how long the block takes, however it ends. Less than `least` seconds are not noted."""
        end = self.begin(kind, name, least)
        try:
            yield
        finally:
            end()
