"""Notes what the learner's batches wait for, other than their episodes, and when."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from headway_api.records import MAX_BATCH_WAITS, BatchWait, BatchWaitKind, BatchWaits, GroupRecord

WAITS_OF_GROUPS: Final = 2
"""Waits of single groups that a batch lists: one for the budget, and one for the store."""
LEAST_SECONDS: Final = 0.001
"""Shorter waits are not noted. The check for a ready server before each group would otherwise be a wait."""


class WaitNotes:
    """The waits of one job. Only the event loop uses it."""

    def __init__(self, started: float) -> None:
        """Begin with the wait for the coordinator's own start.

        Args:
            started: when the process started, in Unix time.
        """
        self._noted: deque[BatchWait] = deque(maxlen=MAX_BATCH_WAITS - WAITS_OF_GROUPS)
        self._running: dict[BatchWaitKind, float] = {"start": started}
        self._of_groups: dict[int, tuple[BatchWait, BatchWait]] = {}
        """By position in the data's order: the group's wait for the budget, and its wait for the store."""

    def runs(self, kind: BatchWaitKind, runs: bool) -> None:
        """Note whether a wait of this kind runs now. The wait begins and ends when `runs` changes."""
        now = time.time()
        if runs:
            self._running.setdefault(kind, now)
        elif (began := self._running.pop(kind, None)) is not None and now - began >= LEAST_SECONDS:
            self._noted.append(BatchWait(kind=kind, began=began, ended=now))

    @contextmanager
    def timed(self, kind: BatchWaitKind) -> Iterator[None]:
        """Note the time that the block takes as a wait."""
        self.runs(kind, True)
        try:
            yield
        finally:
            self.runs(kind, False)

    def stored(self, position: int, began: float, group: GroupRecord) -> None:
        """Note the waits of a group that is durable and billed now, so that a batch can take it.

        Args:
            began: when the group could begin if the budget allowed it, in Unix time.
        """
        every = [*group.episodes, *group.discarded]
        queued = min((each.queued_at for each in every if each.queued_at is not None), default=began)
        ended = max((each.finished_at for each in every), default=began)
        if began <= queued <= ended:  # otherwise an earlier coordinator sampled the group
            now = time.time()
            self._of_groups[position] = (
                BatchWait(kind="budget", began=began, ended=queued),
                BatchWait(kind="storing", began=ended, ended=max(ended, now)),
            )

    def forget(self, positions: Iterable[int]) -> None:
        """Forget the waits of groups that are trained or abandoned."""
        for position in positions:
            self._of_groups.pop(position, None)

    def of(self, positions: Iterable[int]) -> BatchWaits:
        """The waits of a batch of these groups that is sent now.

        They include the last wait of a group for the budget, and the last wait of a group for the store.
        """
        known = [self._of_groups[position] for position in positions if position in self._of_groups]
        last = [max(waits, key=lambda wait: wait.ended) for waits in zip(*known, strict=True)]
        return BatchWaits(sent_at=time.time(), waits=[*self._noted, *last])
