"""Computes how fast a job runs, from observed changes of its status. Pure.

A status has totals, but not the times of their changes. So a rate is measured between two observed changes.
The first observed total may be old, so it does not count as a change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from headway_api.document import Json
from headway_cli import status_values

WINDOW_SECONDS: Final = 1800.0
"""Seconds from the oldest change that a rate uses to now."""
MAX_CHANGES: Final = 512
LEAST_SECONDS: Final = 2.0
"""Minimum seconds between the first and the last change that give a rate."""
SILENT_SECONDS: Final = 60.0
SILENT_GAPS: Final = 3
"""A total no longer has a rate if it has not changed for SILENT_SECONDS, and for SILENT_GAPS times its usual
interval."""


@dataclass(frozen=True)
class Track:
    """A total, and the times at which a change of it was observed."""

    value: int | None = None
    """The present value; None if it is not known yet."""
    changes: tuple[tuple[datetime, int], ...] = ()
    """Times of changes within the window, with the new values."""

    def seen(self, value: int | None, now: datetime) -> Track:
        """The track after the total `value` was observed.

        A smaller total starts a new track, because the job has gone back to an earlier state.
        """
        if value is None or value == self.value:
            return self
        if self.value is None or value < self.value:
            return Track(value)
        kept = [each for each in self.changes if _within(each[0], now, WINDOW_SECONDS)]
        return Track(value, (*kept, (now, value))[-MAX_CHANGES:])

    def rate(self, now: datetime) -> float | None:
        """Growth per second; None if fewer than two changes were observed, or none for a long time."""
        if len(self.changes) < 2:
            return None
        (first, before), (last, after) = self.changes[0], self.changes[-1]
        span, silent = status_values.seconds_between(first, last), status_values.seconds_between(last, now)
        if span is None or silent is None or span < LEAST_SECONDS:
            return None
        usual = span / (len(self.changes) - 1)
        if silent > max(SILENT_SECONDS, SILENT_GAPS * usual):
            return None
        return (after - before) / span


@dataclass(frozen=True)
class History:
    """The observed progress of a job."""

    done: Track = field(default_factory=Track)
    """Finished steps of a training job, or rows of an evaluation."""
    tokens: Track = field(default_factory=Track)

    def seen(self, job: Json, now: datetime) -> History:
        """The history after the job's status was observed."""
        progress = status_values.block(job, "status", "progress")
        done = status_values.count(progress.get("step", progress.get("groups")))
        return History(self.done.seen(done, now), self.tokens.seen(tokens(job), now))


def tokens(job: Json) -> int | None:
    """All tokens of a job: prompts, samples, training and evaluation. None if the status has no counts."""
    usage = status_values.block(job, "status", "usage")
    trained = status_values.count(usage.get("totalTokens"))
    if trained is None:
        trained = _sum(usage, ("prefillTokens", "sampleTokens", "trainTokens"))
    others = _sum(usage, ("evaluationTokens", "endpointTokens", "judgeTokens"))
    return None if trained is None and others is None else (trained or 0) + (others or 0)


def _sum(usage: Json, keys: tuple[str, ...]) -> int | None:
    known = [found for key in keys if (found := status_values.count(usage.get(key))) is not None]
    return sum(known) if known else None


def _within(earlier: datetime, now: datetime, seconds: float) -> bool:
    ago = status_values.seconds_between(earlier, now)
    return ago is not None and ago <= seconds
