"""Where an evaluation stands: what `run` changes, and status and metrics show."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from headway_analysis.billing.segments import Days
from headway_analysis.measures.tries import Try
from headway_coordinator.endpoint.chat import Notes
from headway_coordinator.faults import CandidateFault

Stage = Literal["Pending", "Running", "Complete", "Failed"]


@dataclass
class CandidateState:
    """One candidate. Its tries are kept, and not its groups: those hold every token."""

    name: str
    stage: Stage = "Pending"
    reason: str | None = None
    """Why it failed, in one word."""
    message: str | None = None
    """Why it failed: the field and the fix."""
    tries: dict[int, list[Try]] = field(default_factory=dict)
    """The final tries at each row, by the row's position."""
    days: Days = field(default_factory=dict)
    """What it has used, by day and class."""
    notes: Notes | None = None
    """Of an endpoint: what this process has learned of it."""
    known_dropped: dict[str, str] = field(default_factory=dict)
    """As `GroupRecord.dropped`, of all of its groups."""
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Nothing will sample for it any more: what still runs for it ends."""
    lost_in_a_row: int = 0
    """Groups of which nothing could be scored, one after the other."""
    samples: int = 0
    """Samples of suites that it is measured on, beside the rows."""

    def fail(self, reason: str, message: str) -> None:
        """It cannot be measured any further; what was measured stays. The first reason stands."""
        if self.stage != "Failed":
            # Messages quote what others wrote; status, report and log hold UTF-8 alone.
            self.stage, self.reason, self.message = (
                "Failed",
                reason,
                message.encode(errors="replace").decode(),
            )

    def lose(self, reason: str, message: str) -> None:
        """What samples for it is gone for good."""
        self.fail(reason, message)
        self.lost.set()

    def fault(self, fault: CandidateFault) -> None:
        """The same, of a fault that names its field."""
        self.fail(fault.reason, fault.sentence)

    @property
    def dropped(self) -> dict[str, str]:
        """Parameters that the endpoint refused -> the one sent instead, or an empty string. It outlives this
        process, as it is kept with each group."""
        return self.known_dropped | (self.notes.dropped if self.notes else {})

    @property
    def all_tries(self) -> list[Try]:
        """Every final try, by row; those of suites are the last."""
        return [one for position in sorted(self.tries) for one in self.tries[position]]

    @property
    def own_tries(self) -> list[Try]:
        """The same without those of suites."""
        return [one for one in self.all_tries if not one.place.suite]

    @property
    def answered(self) -> bool:
        """Whether a try of it was scored, in this process or before it."""
        return any(one.scored for one in self.all_tries)


@dataclass
class EvalState:
    """The whole job. Changed on the event loop only."""

    candidates: dict[str, CandidateState]
    rows: int
    """Rows of the job's own dataset, on which each candidate is measured."""
    server_sets: set[int] = field(default_factory=set)
    """Sets of rollout servers that are needed now."""
    finished: bool = False
    updated_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    """When anything last went forward."""
    moved_at: float = field(default_factory=time.monotonic)
    """The same moment, monotonic."""
    in_flight: Counter[str] = field(default_factory=Counter)
    """Episodes that hold a place now, by candidate."""
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Episodes of this process that ended, by outcome and candidate."""
    retried: Counter[str] = field(default_factory=Counter)
    """Episodes that were started again after an InfraError, by candidate."""

    def moved(self) -> None:
        """Something went forward."""
        self.updated_at, self.moved_at = datetime.now(UTC), time.monotonic()

    def live(self) -> Iterator[CandidateState]:
        """Candidates that have not failed."""
        return (candidate for candidate in self.candidates.values() if candidate.stage != "Failed")

    @property
    def failed(self) -> list[str]:
        """Candidates that failed: not all of their rows are measured."""
        return [name for name, candidate in self.candidates.items() if candidate.stage == "Failed"]

    def others_are_answered(self, candidate: CandidateState) -> bool:
        """Whether another candidate has answered rows. One whose newest row is lost too shows nothing: what
        they share may have failed since."""
        others = (other for other in self.candidates.values() if other is not candidate)
        return any(other.answered and not other.lost_in_a_row for other in others)

    @property
    def own_rows_answered(self) -> bool:
        """Whether any candidate has an answered row of the job's own dataset."""
        return any(one.scored for each in self.candidates.values() for one in each.own_tries)

    @property
    def groups_done(self) -> int:
        """Rows done, over all candidates."""
        return sum(len(candidate.tries) for candidate in self.candidates.values())

    @property
    def groups_wanted(self) -> int:
        """Rows to do, over all candidates that have not failed, and those done of the others."""
        failed = (c for c in self.candidates.values() if c.stage == "Failed")
        return sum(map(self.wanted, self.live())) + sum(len(candidate.tries) for candidate in failed)

    def rows_of(self, candidate: CandidateState) -> int:
        """Rows of the job's own dataset that are done."""
        return sum(position < self.rows for position in candidate.tries)

    def wanted(self, candidate: CandidateState) -> int:
        """Rows and samples that a candidate is measured on."""
        return self.rows + candidate.samples
