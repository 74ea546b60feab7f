"""Estimates what a whole evaluation will use and cost.

data        from rows, prompts and limits, once a sandbox has shown how an episode begins
running     from the usage and the episodes so far, once a candidate has played two rows
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
    """The progress of an evaluation at one moment."""

    done: tuple[int, ...]
    """Finished groups of each part."""
    left: tuple[int, ...]
    """Groups left of each part; none for a candidate that has failed."""
    spent: Spent


def section_starts(job: EvalConfig, rows: int) -> list[int]:
    """First position of the job's own rows, and of the samples of each suite."""
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
        parts: the job's.
        numbers: of each part, the number of its section.
        starts: first position of each section.
        state: how far each candidate has come.
        billed: ids of further finished groups that no candidate in `state` has.
    """
    names = {part.candidate for part in parts}
    known = [(name, position) for name in names for position in state.candidates[name].tries]
    known += [(candidate_of(each), position_of(each)) for each in billed]
    counts = Counter((name, bisect_right(starts, position) - 1) for name, position in known)
    return [counts[part.candidate, number] for part, number in zip(parts, numbers, strict=True)]


class EvalEstimates(Estimates[None]):
    """The estimates of one evaluation. `look` runs in a thread; the rest on the event loop."""

    def __init__(
        self,
        job: EvalConfig,
        layout: Layout,
        store: Store,
        ledger: Ledger,
        tariff: Callable[[], Tariff],
        previous: st.Estimate | None,
    ) -> None:
        """`tariff`: the job's current prices. `previous`: the estimate in a predecessor's status."""
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

        Call it before the ledger is read. Blocking.

        Args:
            rows: rows of spec.data that are measured.
            known: what is known of each candidate.
            why: why no more is known.
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
        """The job's progress. A billed group is not left, even if its candidate does not have it yet."""
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
        """Estimate again; None if no candidate exists.

        Runs in a thread, because intervals of many groups take time.

        Args:
            at: the job's progress when this was asked for.
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
        """Show the result of a look. It runs on the event loop, so that an abandoned look shows nothing."""
        self._looked = found

    def _paces(self) -> dict[str, float]:
        """Seconds from one group to the next, by unit, for the units where it is known."""
        longest, found = float(self._job.spec.rollout.timeout_seconds), {}
        for unit in sorted({part.unit for part in self._parts}):
            names = {part.candidate for part in self._parts if part.unit == unit}
            if (pace := self._tally.pace(names, longest)) is not None:
                found[unit] = pace
        return found

    def newest(self, of: None = None) -> Made | None:
        """The estimate of the last look.

        Groups may have ended since. An estimate below the bill is raised to the bill.
        """
        found = self._looked or self._made.get("Data")
        return None if found is None else no_less(found, self._tariff().cost(self._ledger.used()))
