"""The state of an evaluation: `run` changes it; status and metrics show it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from headway_analysis.billing.segments import Days
from headway_analysis.measures.tries import Try
from headway_api.records import GroupRecord
from headway_coordinator.bounds import LOST_LIMIT
from headway_coordinator.endpoint.chat import Notes
from headway_coordinator.faults import CandidateError
from headway_coordinator.recurring import Recurring
from headway_coordinator.state import ProgressTime

Stage = Literal["Pending", "Running", "Complete", "Failed"]


@dataclass
class CandidateState:
    """One candidate. Its tries are kept, but not its groups, because those hold every token."""

    name: str
    stage: Stage = "Pending"
    reason: str | None = None
    """Why the candidate failed, in one word."""
    message: str | None = None
    """Why the candidate failed: the field and the fix."""
    tries: dict[int, list[Try]] = field(default_factory=dict)
    """The final tries at each row, by the row's position."""
    days: Days = field(default_factory=dict)
    """The candidate's usage, by day and class, without questions to judges."""
    notes: Notes | None = None
    """For an endpoint: what this process has learned about it."""
    known_dropped: dict[str, str] = field(default_factory=dict)
    """As `GroupRecord.dropped`, for all of its groups."""
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once nothing will sample for it any more. Its running episodes end then."""
    lost_in_a_row: Counter[str | None] = field(default_factory=Counter)
    """Consecutive groups without a scored episode, by suite; None: rows of the job's own dataset."""
    lost_newest: bool = False
    """Whether nothing of its newest group could be scored."""
    last_error: str = ""
    """Why its last lost group has no score."""
    faults: Recurring = field(default_factory=Recurring)
    """Why its episodes failed in this process."""
    was_put_off: bool = False
    """Whether it failed before any candidate had an answer. The rest of its rows comes after the others'."""
    ended_unscored: bool = False
    """Whether it had its last row, and none was scored."""
    may_retry: bool = False
    """Whether another process may score its lost rows."""
    samples: int = 0
    """How many samples of suites the candidate is measured on, besides the rows."""

    def put_off(self) -> None:
        """Measure the rest of its rows after the others."""
        self.stage, self.was_put_off = "Pending", True
        self.message = "its episodes fail; the rest of its rows is measured after the other candidates"

    def begin(self) -> None:
        """Begin its measurement, or go on with it."""
        if self.stage == "Pending":
            self.stage, self.message = "Running", None
            self.lost_in_a_row.clear()

    @property
    def own_rows_answered(self) -> bool:
        """Whether it has an answered row of the job's own dataset."""
        return any(one.scored for one in self.own_tries)

    def count_lost(self, group: GroupRecord) -> None:
        """Count a group, if it was lost."""
        self.lost_newest = group.unanswered
        lost = self.lost_in_a_row[group.suite] + 1 if group.unanswered else 0
        self.lost_in_a_row[group.suite] = lost

    def end(self) -> None:
        """End its measurement after its last row."""
        if self.own_rows_answered:
            self.stage = "Complete"
            return
        self.ended_unscored = True
        text = f"no row was scored; the last error: {self.last_error}"
        self.fail("EpisodesFailing", f"spec.candidates[{self.name}]: {text}")

    @property
    def may_tell(self) -> bool:
        """Whether it may still show that what the candidates share works."""
        failing = (
            self.was_put_off or self.lost_in_a_row[None] >= LOST_LIMIT or self.faults.fatal_cause is not None
        )
        return self.stage in ("Pending", "Running") and not failing

    def fail(self, reason: str, message: str) -> None:
        """End its measurement; its results stay. The first reason is kept."""
        if self.stage != "Failed":
            # Messages quote what others wrote, but status, report and log hold only UTF-8.
            self.stage, self.reason, self.message = (
                "Failed",
                reason,
                message.encode(errors="replace").decode(),
            )

    def lose(self, reason: str, message: str) -> None:
        """Note that its sampler is permanently gone."""
        self.fail(reason, message)
        self.lost.set()

    def fault(self, fault: CandidateError) -> None:
        """Fail it because of a fault that names its field."""
        self.fail(fault.reason, fault.sentence)

    @property
    def dropped(self) -> dict[str, str]:
        """Parameters that the endpoint refused -> the replacement, or an empty string.

        Each group stores them, so they outlive this process.
        """
        return self.known_dropped | (self.notes.dropped if self.notes else {})

    @property
    def all_tries(self) -> list[Try]:
        """Every final try, by row. Those of suites come last."""
        return [one for position in sorted(self.tries) for one in self.tries[position]]

    @property
    def own_tries(self) -> list[Try]:
        """Every final try without those of suites."""
        return [one for one in self.all_tries if not one.place.suite]

    @property
    def answered(self) -> bool:
        """Whether a try of it was scored, in this process or an earlier one."""
        return any(one.scored for one in self.all_tries)


@dataclass
class EvalState(ProgressTime):
    """The whole job. Changes on the event loop only."""

    candidates: dict[str, CandidateState]
    rows: int
    """Rows of the job's own dataset, on which each candidate is measured."""
    server_sets: set[int] = field(default_factory=set)
    """Sets of rollout servers that are needed now."""
    finished: bool = False
    in_flight: Counter[str] = field(default_factory=Counter)
    """Episodes that hold a place now, by candidate."""
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Episodes of this process that ended, by outcome and candidate."""
    retried: Counter[str] = field(default_factory=Counter)
    """Episodes that were started again after an InfraError, by candidate."""

    def live(self) -> Iterator[CandidateState]:
        """Candidates that have not failed."""
        return (candidate for candidate in self.candidates.values() if candidate.stage != "Failed")

    @property
    def failed(self) -> list[str]:
        """Candidates that failed: not all of their rows are measured."""
        return [name for name, candidate in self.candidates.items() if candidate.stage == "Failed"]

    def others_are_answered(self, candidate: CandidateState) -> bool:
        """Whether another candidate has answered rows.

        A running candidate whose newest group is lost too proves nothing: what all candidates share may have
        failed.
        """
        others = (other for other in self.candidates.values() if other is not candidate)
        return any(
            other.answered and (other.stage == "Complete" or not other.lost_newest) for other in others
        )

    def others_may_tell(self, candidate: CandidateState) -> bool:
        """Whether no candidate has an answered row, and another may still get one."""
        others = (other for other in self.candidates.values() if other is not candidate)
        return not self.own_rows_answered and any(other.may_tell for other in others)

    @property
    def own_rows_answered(self) -> bool:
        """Whether any candidate has an answered row of the job's own dataset."""
        return any(candidate.own_rows_answered for candidate in self.candidates.values())

    @property
    def groups_done(self) -> int:
        """Rows done, over all candidates."""
        return sum(len(candidate.tries) for candidate in self.candidates.values())

    @property
    def groups_wanted(self) -> int:
        """Rows to do for all candidates that have not failed, and rows done by the others."""
        failed = (c for c in self.candidates.values() if c.stage == "Failed")
        return sum(map(self.wanted, self.live())) + sum(len(candidate.tries) for candidate in failed)

    def rows_of(self, candidate: CandidateState) -> int:
        """How many rows of the job's own dataset are done."""
        return sum(position < self.rows for position in candidate.tries)

    def wanted(self, candidate: CandidateState) -> int:
        """The number of rows and samples that a candidate is measured on."""
        return self.rows + candidate.samples
