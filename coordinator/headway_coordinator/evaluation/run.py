"""Drives an evaluation: measures candidates on the same rows, and makes each group durable once it is done.

a unit begins           when `parallelism` allows another set of servers; a unit without servers at once
rows are measured       in the order of the file; all candidates of a unit play a row before the next row. The
                        samples of suites come after the rows, and are treated like rows
a group is done         once it is in the spool and in the ledger; a successor does not sample it again
a place is free         once its group is sampled: the next group begins while the first is written
a unit ends             when each of its candidates has every row, or has failed; its servers are released
a candidate is put off  if it fails before any candidate has an answer; its unit begins again after the others
a process is stopped    its servers stay: the successor uses them
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from typing import Final, Literal

from headway_analysis.billing.segments import fold
from headway_analysis.measures.tries import Rules, TryPlace, tries_of
from headway_api import logs
from headway_api.exits import JobError
from headway_api.records import EpisodeRecord, GroupRecord, Purpose
from headway_api.rows import Row
from headway_api.spec.evaluation import RLEvalJobSpec
from headway_coordinator import group as groups
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.bounds import LOST_LIMIT, last_error
from headway_coordinator.budget.gate import Budget, unbounded
from headway_coordinator.budget.group_reservation import GroupReservation
from headway_coordinator.budget.worst import NO_LIMITS, Bill, Limits
from headway_coordinator.dataset import Order, digest, position_of
from headway_coordinator.episode import Task
from headway_coordinator.evaluation.failing import (
    PUT_OFF,
    Verdict,
    after_episode,
    after_lost_rows,
    nothing_scored,
)
from headway_coordinator.evaluation.measured import measured
from headway_coordinator.evaluation.state import CandidateState, EvalState
from headway_coordinator.faults import CandidateError
from headway_coordinator.gateway.asks import Sampling
from headway_coordinator.ledger import events
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.ledger.usage import JUDGE
from headway_coordinator.recurring import Recurring
from headway_coordinator.serial_executor import SerialExecutor
from headway_coordinator.spool import Spool

WRITING: Final = 8
"""Number of sampled groups that may be written while other groups are sampled in their places."""
_log = logging.getLogger(__name__)

RunOfCandidate = Mapping[str, groups.Run]
"""Candidate -> the function that runs one of its episodes."""


@dataclass(frozen=True)
class Unit:
    """Candidates that are measured side by side, because the same servers or endpoint sample for them."""

    candidates: tuple[str, ...]
    sampled_by: Literal["servers", "endpoint", "nobody"]
    open: Callable[[], AbstractAsyncContextManager[RunOfCandidate]]
    """Prepares the candidates for sampling, during a block. A candidate that cannot be measured fails, and is
    absent from the result."""
    limiter: AdaptiveSemaphore
    """Bounds the unit's episodes in flight."""
    server_set: int | None = None
    """The number of the set of rollout servers that the unit needs; None: it needs none."""
    settled: Container[str] = ()
    """Ids of episodes that are not retried, because the rescored run has only a failure for them."""
    limits: Callable[[str, str | None], Limits] = lambda candidate, suite: NO_LIMITS
    """Candidate and suite -> the bounds of an episode. The suite is None for an episode on a row."""
    model: str | None = None
    """The value of `GroupRecord.model`."""


class Evaluation:
    """Drives one evaluation job. All of its state changes on the event loop only."""

    def __init__(
        self,
        spec: RLEvalJobSpec,
        rows: Sequence[Row],
        candidates: Sequence[str],
        spool: Spool,
        ledger: Ledger,
        start_number: int,
        on_change: Callable[[], None] = lambda: None,
        on_episode: Callable[[EpisodeRecord], None] = lambda record: None,
        faults: Recurring | None = None,
        budget: Budget | None = None,
    ) -> None:
        """`faults` collects why episodes failed. `budget` decides whether a group may begin."""
        self._spec = spec
        self._rows = rows
        self._measured = measured(spec, rows)
        self._spool = spool
        self._ledger = ledger
        self._start_number = start_number
        self._on_change = on_change
        self._on_episode = on_episode
        self.faults = faults or Recurring()
        self._budget = budget or unbounded()
        self._order = Order(rows=len(self._measured), seed=spec.seed, shuffle=False)
        sampling = spec.evaluation.sampling
        self._sampling = Sampling(sampling.temperature, sampling.top_p, spec.max_tokens)
        self._rules = Rules(spec.evaluation.success_threshold, spec.agent.turn_limit)
        self._suite_rules = Rules(spec.evaluation.success_threshold)
        self._store = SerialExecutor()
        self._sets_at_once = asyncio.Semaphore(spec.parallelism)
        samples = len(self._measured) - len(rows)
        states = {
            name: CandidateState(name, samples=samples * spec.takes_suites(name)) for name in candidates
        }
        self.state = EvalState(states, rows=len(rows))

    @property
    def store_busy(self) -> float:
        """Seconds that the current write to the artifact store has taken so far."""
        return self._store.busy

    async def restore(self, server_sets: Iterable[int] = ()) -> None:
        """Restore a predecessor's groups: no answered group is sampled again, and all are billed.

        `server_sets` are the predecessor's sets of servers. They are kept while units need them.

        Raises:
            JobError: `DatasetChanged`: the rows have changed since the job began.
        """
        await self._require_same_rows()
        self.state.server_sets = set(server_sets)
        for name, candidate in self.state.candidates.items():
            for group in await self._store(self._spool.evaluated, name):
                self._require_same_place(group)
                await self._store(self._ledger.group, group)
                self._add(candidate, group)
            self._end(candidate)
        for group in await self._store(self._spool.unanswered):
            await self._store(self._ledger.group, group)
        if any(candidate.answered for candidate in self.state.candidates.values()):
            self.faults.scored_before()
        logs.event(_log, "restored", groups=self.state.groups_done)

    async def _require_same_rows(self) -> None:
        """Raise an error if the rows have changed since the job began: candidates are compared by row."""
        mine = await asyncio.to_thread(digest, self._rows)
        if await self._store(self._spool.rows_digest, mine) != mine:
            text = (
                "the rows have changed since the job began; restore the file, or measure the new rows "
                "with a new job"
            )
            raise JobError("DatasetChanged", text, field="spec.data.uri")

    def _require_same_place(self, group: GroupRecord) -> None:
        position = position_of(group.group_id)
        if position >= len(self._measured) or self._measured[position].suite != group.suite:
            text = "the number of rows has changed since the job began; measure the dataset with a new job"
            raise JobError("DatasetChanged", text, field="spec.data.uri")

    async def run(self, units: Sequence[Unit]) -> None:
        """Run until every candidate has every row, or has failed.

        Raises:
            ExceptionGroup: with a JobError. Its reason is `EpisodesFailing`, if no other candidate has
                answers; `Superseded`; or the reason of a recurring fault, if no episode was scored.
            JobError: no candidate has a scored row. The reason is that of a recurring fault, or
                `EpisodesFailing` if no cause is known.
        """
        pending = [unit for unit in units if self._pending(unit)]
        had = self.state.server_sets & {unit.server_set for unit in pending}
        self.state.server_sets = {number for number in had if number is not None}
        await self._side_by_side(sorted(pending, key=lambda unit: unit.server_set not in had))
        put_off = [unit for unit in pending if self._pending(unit)]
        await self._side_by_side(put_off)
        if (error := nothing_scored(self.state, self.faults)) is not None:
            raise error
        self.state.finished = True
        self._moved()

    async def _side_by_side(self, units: Iterable[Unit]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for unit in units:
                tasks.create_task(self._unit(unit))

    def lose(self, name: str, reason: str, message: str) -> None:
        """Fail a candidate whose servers the operator gave up. Its results stay, and the others continue."""
        candidate = self.state.candidates[name]
        if candidate.stage not in ("Pending", "Running"):
            return
        logs.event(_log, "candidate-lost", level=logging.ERROR, candidate=name, error=message)
        candidate.lose(reason, message)
        self._moved()

    def _pending(self, unit: Unit) -> bool:
        return any(self.state.candidates[name].stage == "Pending" for name in unit.candidates)

    async def _unit(self, unit: Unit) -> None:
        if unit.server_set is None:
            await self._measure(unit)
            return
        async with self._sets_at_once:
            self.state.server_sets.add(unit.server_set)
            self._moved()
            # A coordinator that is stopped here does not release the servers: its successor uses them, and
            # the models are loaded already. If the job is suspended or over, the operator deletes them.
            await self._measure(unit)
            self.state.server_sets.discard(unit.server_set)
            self._moved()

    async def _measure(self, unit: Unit) -> None:
        async with unit.open() as runs:
            for name in runs:
                self.state.candidates[name].begin()
            self._moved()
            left = self._left([*runs])
            places = max(1, unit.limiter.ceiling)
            sampling = asyncio.Semaphore(places)
            async with asyncio.TaskGroup() as workers:
                for _ in range(places + WRITING):
                    workers.create_task(self._work(unit, runs, left, sampling))
        for name in runs:
            self._end(self.state.candidates[name], may_retry=unit.sampled_by == "servers")
        self._moved()

    def _end(self, candidate: CandidateState, *, may_retry: bool = False) -> None:
        """End a candidate's measurement if it is running, or has every row already.

        Args:
            candidate: the candidate.
            may_retry: whether another process may score its lost rows.
        """
        has_all = len(candidate.tries) == self.state.wanted(candidate)
        if candidate.stage == "Running" or (candidate.stage == "Pending" and has_all):
            candidate.end()
            candidate.may_retry = may_retry
            if candidate.ended_unscored:
                self._failed(candidate, candidate.message)

    def _left(self, names: Sequence[str]) -> Iterator[tuple[CandidateState, int]]:
        """The candidates and positions that are left to measure, row by row.

        Each is decided as late as possible, because a candidate may fail meanwhile.
        """
        for position in range(len(self._measured)):
            for candidate in map(self.state.candidates.__getitem__, names):
                wanted = position < self.state.wanted(candidate)
                if candidate.stage == "Running" and wanted and position not in candidate.tries:
                    yield candidate, position

    async def _work(
        self,
        unit: Unit,
        runs: RunOfCandidate,
        left: Iterator[tuple[CandidateState, int]],
        sampling: asyncio.Semaphore,
    ) -> None:
        while True:
            async with AsyncExitStack() as place:
                await place.enter_async_context(sampling)
                if (following := next(left, None)) is None:
                    return
                candidate, position = following
                plan = self._plan(unit, candidate, position)
                limits = unit.limits(candidate.name, plan.suite)
                limit = limits.sampled(plan.sampling.max_tokens, plan.sampling.episode_tokens)
                bill = Bill(plan.purpose, plan.sampled_by, plan.model)
                try:
                    async with self._budget.group(plan, bill, limits, limit) as reservation:
                        group = await self._sampled(unit, runs[candidate.name], plan, reservation)
                        await place.aclose()
                        await self._keep(unit, candidate, group)
                except* CandidateError as faults:
                    fault = _first(faults)
                    candidate.fault(fault)
                    self._failed(candidate, fault.sentence)

    def _failed(self, candidate: CandidateState, why: str | None) -> None:
        logs.event(_log, "candidate-failed", level=logging.ERROR, candidate=candidate.name, error=why)
        self._moved()

    def _plan(self, unit: Unit, candidate: CandidateState, position: int) -> groups.Plan:
        one = self._measured[position]
        return groups.Plan(
            slot=self._order.slot(position),
            purpose=Purpose.EVALUATION,
            step=0,
            row=one.row,
            size=one.size,
            sampling=self._sampling,
            job_seed=self._spec.seed,
            candidate=candidate.name,
            suite=one.suite,
            sampled_by=unit.sampled_by,
            model=unit.model,
        )

    async def _sampled(
        self, unit: Unit, run_episode: groups.Run, plan: groups.Plan, reservation: GroupReservation
    ) -> GroupRecord:
        name = str(plan.candidate)
        return await groups.run(
            replace(plan, spending=reservation),
            reservation.watched(lambda task: self._counted(unit, name, run_episode, task), unit.settled),
            unit.limiter,
            start_number=self._start_number,
            max_retries=self._spec.rollout.max_retries,
            settled=unit.settled,
        )

    async def _keep(self, unit: Unit, candidate: CandidateState, group: GroupRecord) -> None:
        """Make a group durable, count it, and act if the candidate has lost too many groups in a row."""
        if candidate.dropped:
            group = group.model_copy(update={"dropped": candidate.dropped})
        group = await self._store(self._spool.put_unless_superseded, group, self._start_number)
        await self._store(self._ledger.group, group)
        self._add(candidate, group)
        self._moved()
        if not all(episode.episode_id in unit.settled for episode in group.episodes):
            candidate.count_lost(group)
        if candidate.lost_in_a_row[group.suite] >= LOST_LIMIT and candidate.stage == "Running":
            verdict = after_lost_rows(self.state, candidate, self.faults, group, unit.sampled_by)
            self._follow(candidate, verdict)

    def _add(self, candidate: CandidateState, group: GroupRecord) -> None:
        position = position_of(group.group_id)
        rules = self._rules if group.suite is None else self._suite_rules
        candidate.tries[position] = tries_of(group, self._place(candidate.name, position), rules)
        own = (event for event in events.of_group(group) if event.usage_class not in JUDGE)
        candidate.days = fold(own, candidate.days)
        candidate.known_dropped |= group.dropped
        if group.unanswered and group.suite is None:
            candidate.last_error = last_error(group)

    def _place(self, candidate: str, position: int) -> TryPlace:
        one = self._measured[position]
        return TryPlace(
            candidate=candidate,
            row=position,
            task=one.task,
            row_id=one.row_id,
            cluster=one.cluster,
            suite=one.suite is not None,
        )

    async def _counted(
        self, unit: Unit, name: str, run_episode: Callable[[Task], Awaitable[EpisodeRecord]], task: Task
    ) -> EpisodeRecord:
        state, candidate = self.state, self.state.candidates[name]
        state.in_flight[name] += 1
        state.retried[name] += groups.is_retry(task.attempt)
        try:
            record = await _unless_lost(candidate, run_episode(task))
        finally:
            state.in_flight[name] -= 1
        state.ended[record.outcome.value, name] += 1
        if record.reward is not None:
            state.moved()
        self._on_episode(record)
        scored, cause = record.reward is not None, self.faults.cause_of(record.episode_id)
        if cause is not None:
            candidate.faults.note(record.episode_id, cause)
        candidate.faults.ended(record.episode_id, scored=scored, at_once=1 + state.in_flight[name])
        at_once = 1 + sum(state.in_flight.values())
        if self.faults.ended(record.episode_id, scored=scored, at_once=at_once):
            self._on_change()
        self._follow(candidate, after_episode(state, candidate, self.faults, record, cause, unit.sampled_by))
        return record

    def _follow(self, candidate: CandidateState, verdict: Verdict) -> None:
        if isinstance(verdict, Exception):
            raise verdict
        if verdict == PUT_OFF:
            logs.event(_log, "candidate-put-off", level=logging.WARNING, candidate=candidate.name)
            candidate.put_off()
            self._moved()

    def _moved(self) -> None:
        self.state.moved()
        self._on_change()


async def _unless_lost(candidate: CandidateState, episode: Awaitable[EpisodeRecord]) -> EpisodeRecord:
    """Run an episode until it ends, or until the candidate's servers are given up.

    Raises:
        CandidateError: the servers were given up, and the episode was cancelled.
    """
    running, lost = asyncio.ensure_future(episode), asyncio.ensure_future(candidate.lost.wait())
    try:
        await asyncio.wait({running, lost}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
    finally:
        lost.cancel()
        running.cancel()
        await asyncio.wait({running, lost})
    raise CandidateError(
        candidate.reason or "", candidate.message or "", f"spec.candidates[{candidate.name}]"
    )


def _first(faults: BaseExceptionGroup[CandidateError]) -> CandidateError:
    error: BaseException = faults
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, CandidateError)
    return error
