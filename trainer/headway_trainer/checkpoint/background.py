"""Uploads a checkpoint in a thread during training, one upload at a time.

Training waits only for the local copy of the learner's state. The upload and the journal's last writes, which
make the checkpoint durable, run in a thread. The next checkpoint waits for them.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """Runs at most one piece of work at a time. The method that waits for the work raises its exception."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._work: Future[None] | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Begin `work` once the current work is over. Raise the exception of the current work, if it
        failed."""
        self.wait()
        self._work = self._thread.submit(work)

    def wait(self) -> None:
        """Return once no work runs. Raise the exception of the work, if it failed."""
        work, self._work = self._work, None
        if work is not None:
            work.result()

    def raise_failure(self) -> None:
        """Raise the exception of the work, if it is over and failed. Never wait."""
        if self._work is not None and self._work.done():
            self.wait()
