"""Work that goes on beside training, one piece at a time: the upload of a checkpoint.

Between the local copy of the learner's state, for which training stands still, and the moment it is durable
lie the upload and the journal's last writes. They run in a thread; the next checkpoint waits for them.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """At most one piece of work at a time; what it raises comes up where it is waited for."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._work: Future[None] | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Begin `work` once what runs is over; raises what that raised."""
        self.wait()
        self._work = self._thread.submit(work)

    def wait(self) -> None:
        """Return once nothing runs; raises what the work raised."""
        work, self._work = self._work, None
        if work is not None:
            work.result()

    def raise_failure(self) -> None:
        """Raise what the work raised, if it is over; return at once."""
        if self._work is not None and self._work.done():
            self.wait()
