"""Estimates what a whole evaluation will use and cost. An estimate has one of two bases.

data        rows, prompts and limits, once a sandbox has shown how an episode begins
running     the usage and the episodes so far, once a candidate has played two rows
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate

from headway_analysis.estimate.before import of_eval_job
from headway_analysis.estimate.candidates import (
    Opening,
    Part,
    PartProgress,
    of_evaluation,
    parts_of,
    sets_of,
)
from headway_analysis.estimate.made import Made, no_less
from headway_analysis.estimate.tally import EvaluationTally, candidate_of
from headway_analysis.estimate.whole import Spent
from headway_api import status as st
from headway_api.artifacts import Layout
from headway_api.config import EvalConfig
from headway_api.prices import Tariff
from headway_api.records import UsageEvent
from headway_api.store import Store
from headway_coordinator.dataset import position_of
from headway_coordinator.estimate.kept import Estimates
from headway_coordinator.evaluation.state import EvalState
from headway_coordinator.ledger.segments import Ledger


@dataclass(frozen=True)
class EvaluationProgress:
    """The progress of an evaluation at one moment. A part is a candidate's groups on one section."""

    done: tuple[int, ...]
    """Number of finished groups of each part."""
    left: tuple[int, ...]
    """Number of groups left of each part; 0 for a candidate that has failed."""
    spent: Spent


def section_starts(job: EvalConfig, rows: int) -> list[int]:
    """The first position of each section: of the job's own rows, and of the samples of each suite."""
    sizes = [rows, *(suite.limit for suite in job.spec.suites)]
    return [0, *accumulate(sizes[:-1])]


def done_of(
    parts: Sequence[Part],
    numbers: Sequence[int],
    starts: Sequence[int],
    state: EvalState,
    billed: Collection[str] = (),
) -> list[int]:
    """The number of finished groups of each part.

    Args:
        parts: the job's parts.
        numbers: the number of each part's section.
        starts: the first position of each section.
        state: the state with each candidate's tries.
        billed: ids of further finished groups, which no candidate in `state` has yet.
    """
    names = {part.candidate for part in parts}
    known = [(name, position) for name in names for position in state.candidates[name].tries]
    known += [(candidate_of(each), position_of(each)) for each in billed]
    counts = Counter((name, bisect_right(starts, position) - 1) for name, position in known)
    return [counts[part.candidate, number] for part, number in zip(parts, numbers, strict=True)]


class EvalEstimates(Estimates[None]):
    """The estimates of one evaluation. `look` runs in a thread, and other methods on the event loop."""

    def __init__(
        self,
        job: EvalConfig,
        layout: Layout,
        store: Store,
        ledger: Ledger,
        tariff: Callable[[], Tariff],
        previous: st.Estimate | None,
    ) -> None:
        """`tariff` returns the job's current prices. `previous` is the estimate in a predecessor's status."""
        super().__init__(layout, store, ledger, tariff, previous)
        self._job = job
        self._parts: list[Part] = []
        self._numbers: list[int] = []
        """The number of each part's section."""
        self._tally = EvaluationTally()
        self._why = ""
        self._looked: Made | None = None

    def _learn(self, events: Sequence[UsageEvent]) -> None:
        self._tally.add(events)

    def before(self, rows: int, known: Mapping[str, Opening], why: str = "") -> None:
        """Estimate from data and limits alone, unless a predecessor has done so.

        Call this before the ledger is read. Blocking.

        Args:
            rows: number of rows of spec.data that are measured.
            known: candidate -> what is known about the beginning of its episodes.
            why: why nothing is known about other candidates.
        """
        self._parts, self._why = parts_of(self._job, rows, known), why
        suites = [None, *(suite.name for suite in self._job.spec.suites)]
        self._numbers = [suites.index(part.suite) for part in self._parts]
        self._tally = EvaluationTally(section_starts(self._job, rows))
        self._restore()
        if self._parts and "Data" not in self._made:
            self._keep(of_eval_job(self._job, self._parts, self.price, why))

    def restored(self) -> None:
        """Note that the ledger's earlier events have been read, so all further events are new."""
        with self._learning:
            self._tally.fresh.clear()

    def progress(self, state: EvalState) -> EvaluationProgress:
        """The job's progress. A billed group counts as done even if its candidate does not have it yet."""
        with self._learning:
            fresh = self._tally.fresh
            fresh -= {
                each for each in fresh if position_of(each) in state.candidates[candidate_of(each)].tries
            }
            done = done_of(self._parts, self._numbers, self._tally.starts, state, fresh)
            spent = self._spent(self._tally.ended - self._tally.began)
        failed = set(state.failed)
        left = [
            0 if part.candidate in failed else max(0, part.groups - many)
            for part, many in zip(self._parts, done, strict=True)
        ]
        return EvaluationProgress(tuple(done), tuple(left), spent)

    def look(self, at: EvaluationProgress) -> Made | None:
        """Make a new estimate; None if there is nothing to estimate, because no candidate exists.

        Run this in a thread, because intervals of many groups take time.

        Args:
            at: the job's progress when the estimate was requested.
        """
        if not self._parts:
            return None
        with self._learning:
            measured = [
                self._tally.measured(part.candidate, number, done=done, episodes=part.group_size)
                for part, number, done in zip(self._parts, self._numbers, at.done, strict=True)
            ]
            paces = self._paces()
        standings = [PartProgress(*each) for each in zip(self._parts, at.left, measured, strict=True)]
        sets = sets_of(self._job, paces)
        found = of_evaluation(standings, self.price, sets=sets, spent=at.spent, why=self._why)
        if found.basis == "Running":
            return self._as_running(found)
        data = self._made.get("Data")
        return self._as_made(found, data.time if data else datetime.now(UTC))

    def show(self, found: Made | None) -> None:
        """Publish the result of `look`.

        This runs on the event loop, so the result of an abandoned `look` is never published.
        """
        self._looked = found

    def _paces(self) -> dict[str, float]:
        """Unit -> seconds from the end of one group to the end of the next, for units where it is known."""
        longest, found = float(self._job.spec.rollout.timeout_seconds), {}
        for unit in sorted({part.unit for part in self._parts}):
            names = {part.candidate for part in self._parts if part.unit == unit}
            if (pace := self._tally.pace(names, longest)) is not None:
                found[unit] = pace
        return found

    def newest(self, of: None = None) -> Made | None:
        """The last estimate. If the bill has passed it since, the estimate is raised to the bill."""
        found = self._looked or self._made.get("Data")
        return None if found is None else no_less(found, self._tariff().cost(self._ledger.used()))
