"""The state of an evaluation. `run.py` changes it, and status and metrics show it."""

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
    """The state of one candidate. It keeps tries instead of groups, because groups hold every token."""

    name: str
    stage: Stage = "Pending"
    reason: str | None = None
    """Why the candidate failed, in one word."""
    message: str | None = None
    """Why the candidate failed: the field and the fix."""
    tries: dict[int, list[Try]] = field(default_factory=dict)
    """Position of a row -> the final tries at the row."""
    days: Days = field(default_factory=dict)
    """The candidate's usage, by day and class, without questions to judges."""
    notes: Notes | None = None
    """For an endpoint: what this process has learned about the endpoint."""
    known_dropped: dict[str, str] = field(default_factory=dict)
    """The entries of `GroupRecord.dropped` of all of the candidate's groups."""
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the operator gives up the candidate's servers. Running episodes of the candidate end then."""
    lost_in_a_row: Counter[str | None] = field(default_factory=Counter)
    """Suite -> number of consecutive groups without a scored episode. None: rows of the job's own dataset."""
    lost_newest: bool = False
    """Whether the candidate's newest group has no scored episode."""
    last_error: str = ""
    """Why the candidate's last lost group has no score."""
    faults: Recurring = field(default_factory=Recurring)
    """Why the candidate's episodes failed in this process."""
    was_put_off: bool = False
    """Whether the candidate failed before any candidate had an answer. The rest of its rows is measured after
    the other candidates."""
    ended_unscored: bool = False
    """Whether the candidate has every row, and none of its own rows was scored."""
    may_retry: bool = False
    """Whether another process may score the candidate's lost rows."""
    samples: int = 0
    """Number of samples of suites that the candidate is measured on, besides the rows."""

    def put_off(self) -> None:
        """Measure the rest of the candidate's rows after the other candidates."""
        self.stage, self.was_put_off = "Pending", True
        self.message = "its episodes fail; the rest of its rows is measured after the other candidates"

    def begin(self) -> None:
        """Begin the candidate's measurement, or continue it after it was put off."""
        if self.stage == "Pending":
            self.stage, self.message = "Running", None
            self.lost_in_a_row.clear()

    @property
    def own_rows_answered(self) -> bool:
        """Whether the candidate has an answered row of the job's own dataset."""
        return any(one.scored for one in self.own_tries)

    def count_lost(self, group: GroupRecord) -> None:
        """Count a group if it was lost. A group with a scored episode resets the count."""
        self.lost_newest = group.unanswered
        lost = self.lost_in_a_row[group.suite] + 1 if group.unanswered else 0
        self.lost_in_a_row[group.suite] = lost

    def end(self) -> None:
        """End the candidate's measurement after its last row. It fails if none of its own rows was scored."""
        if self.own_rows_answered:
            self.stage = "Complete"
            return
        self.ended_unscored = True
        text = f"no row was scored; the last error: {self.last_error}"
        self.fail("EpisodesFailing", f"spec.candidates[{self.name}]: {text}")

    @property
    def may_tell(self) -> bool:
        """Whether the candidate may still get an answer, which shows that the parts that all share work."""
        failing = (
            self.was_put_off or self.lost_in_a_row[None] >= LOST_LIMIT or self.faults.fatal_cause is not None
        )
        return self.stage in ("Pending", "Running") and not failing

    def fail(self, reason: str, message: str) -> None:
        """Fail the candidate. Its results stay. If it has failed before, the first reason is kept."""
        if self.stage != "Failed":
            # Messages quote text of others, which may not be encodable as UTF-8, as the status requires.
            self.stage, self.reason, self.message = (
                "Failed",
                reason,
                message.encode(errors="replace").decode(),
            )

    def lose(self, reason: str, message: str) -> None:
        """Fail the candidate because its servers are permanently gone, and end its running episodes."""
        self.fail(reason, message)
        self.lost.set()

    def fault(self, fault: CandidateError) -> None:
        """Fail the candidate with the reason and the message of `fault`."""
        self.fail(fault.reason, fault.sentence)

    @property
    def dropped(self) -> dict[str, str]:
        """Parameter that the endpoint refused -> the parameter sent instead, or an empty string.

        Each group stores these, so that a restarted coordinator knows them.
        """
        return self.known_dropped | (self.notes.dropped if self.notes else {})

    @property
    def all_tries(self) -> list[Try]:
        """Every final try, by row. Tries at samples of suites come last."""
        return [one for position in sorted(self.tries) for one in self.tries[position]]

    @property
    def own_tries(self) -> list[Try]:
        """Every final try at a row of the job's own dataset."""
        return [one for one in self.all_tries if not one.place.suite]

    @property
    def answered(self) -> bool:
        """Whether any try of the candidate was scored, in this process or an earlier one."""
        return any(one.scored for one in self.all_tries)


@dataclass
class EvalState(ProgressTime):
    """The state of the whole job. It changes on the event loop only."""

    candidates: dict[str, CandidateState]
    rows: int
    """Number of rows of the job's own dataset that each candidate is measured on."""
    server_sets: set[int] = field(default_factory=set)
    """Numbers of the sets of rollout servers that are needed now."""
    finished: bool = False
    in_flight: Counter[str] = field(default_factory=Counter)
    """Candidate -> number of its episodes that are running."""
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(outcome, candidate) -> number of episodes that have ended in this process."""
    retried: Counter[str] = field(default_factory=Counter)
    """Candidate -> number of episodes that were retried after an InfraError."""

    def live(self) -> Iterator[CandidateState]:
        """Candidates that have not failed."""
        return (candidate for candidate in self.candidates.values() if candidate.stage != "Failed")

    @property
    def failed(self) -> list[str]:
        """The names of candidates that have failed."""
        return [name for name, candidate in self.candidates.items() if candidate.stage == "Failed"]

    def others_are_answered(self, candidate: CandidateState) -> bool:
        """Whether another candidate has answered rows, and still gets answers if it is running.

        If the newest group of a running candidate is lost too, something that all candidates share may have
        failed. So such a candidate does not count.
        """
        others = (other for other in self.candidates.values() if other is not candidate)
        return any(
            other.answered and (other.stage == "Complete" or not other.lost_newest) for other in others
        )

    def others_may_tell(self, candidate: CandidateState) -> bool:
        """Whether no candidate has an answered row yet, but another candidate may still get one."""
        others = (other for other in self.candidates.values() if other is not candidate)
        return not self.own_rows_answered and any(other.may_tell for other in others)

    @property
    def own_rows_answered(self) -> bool:
        """Whether any candidate has an answered row of the job's own dataset."""
        return any(candidate.own_rows_answered for candidate in self.candidates.values())

    @property
    def groups_done(self) -> int:
        """Number of finished groups of all candidates, on rows and samples."""
        return sum(len(candidate.tries) for candidate in self.candidates.values())

    @property
    def groups_wanted(self) -> int:
        """Number of groups in all. A failed candidate counts only with its finished groups."""
        failed = (c for c in self.candidates.values() if c.stage == "Failed")
        return sum(map(self.wanted, self.live())) + sum(len(candidate.tries) for candidate in failed)

    def rows_of(self, candidate: CandidateState) -> int:
        """The number of rows of the job's own dataset that the candidate has finished."""
        return sum(position < self.rows for position in candidate.tries)

    def wanted(self, candidate: CandidateState) -> int:
        """The number of rows and samples that a candidate is measured on."""
        return self.rows + candidate.samples
