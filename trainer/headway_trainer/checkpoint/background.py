"""Work in the background of training, one piece at a time: the upload of a checkpoint.

Training waits only for the local copy of the learner's state. The upload and the journal's last writes, which
make the checkpoint durable, run in a thread. The next checkpoint waits for them.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """At most one piece of work at a time. Its exception is raised in the method that waits for it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._work: Future[None] | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Begin `work` once the present work is over; raise what that raised."""
        self.wait()
        self._work = self._thread.submit(work)

    def wait(self) -> None:
        """Return once nothing runs; raise what the work raised."""
        work, self._work = self._work, None
        if work is not None:
            work.result()

    def raise_failure(self) -> None:
        """Raise what the work raised, if it is over. Never wait."""
        if self._work is not None and self._work.done():
            self.wait()
