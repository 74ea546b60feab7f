"""Writes of a training job's coordinator: in order, off the event loop, and only by the newest coordinator.

A successor claims the job under a higher number. From then on the spool refuses what an older coordinator
writes, and the older one ends with `Superseded`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from headway_api import logs
from headway_api.records import Abandoned, GroupRecord, PolicyVersion, StepReport, WeightsManifest
from headway_coordinator.evaluation.summary import Summary
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.remedies.driver import Record
from headway_coordinator.serial_executor import SerialExecutor
from headway_coordinator.spool import Spool

_log = logging.getLogger(__name__)


class Durable:
    """Spool and ledger, as coroutines for the event loop. A call returns once its write is durable."""

    def __init__(self, spool: Spool, ledger: Ledger, start_number: int) -> None:
        """`start_number`: the number of this coordinator's start."""
        self._spool = spool
        self._ledger = ledger
        self._start_number = start_number
        self._call = SerialExecutor()

    @property
    def busy(self) -> float:
        """Seconds that the current write has taken so far; 0 without one."""
        return self._call.busy

    async def settled(self) -> None:
        """Return once every earlier call has ended."""
        await self._call(lambda: None)

    async def put(self, group: GroupRecord) -> GroupRecord:
        """Spool a group. If a predecessor has spooled one of this name, return that one.

        Raises:
            JobError: `Superseded`: there is a newer coordinator.
        """
        return await self._call(self._spool.put_unless_superseded, group, self._start_number)

    async def give_up(self, group: GroupRecord, why: Abandoned) -> GroupRecord:
        """Mark a spooled group as abandoned, and return the marked group.

        Raises:
            JobError: `Superseded`: there is a newer coordinator.
        """
        return await self._call(self._claimed_give_up, group, why)

    async def decide(self, record: Record) -> Record:
        """Record a decision about a remedy. Return the first one that was written for its number.

        Raises:
            JobError: `Superseded`: there is a newer coordinator.
        """
        return await self._call(self._claimed_decide, record)

    async def conclude(self, summary: Summary) -> None:
        """Record a validation's summary.

        Raises:
            JobError: `Superseded`: there is a newer coordinator.
        """
        await self._call(self._claimed_conclude, summary)

    async def keep(self, report: StepReport) -> None:
        """Keep the learner's report of a step, then write the step's usage."""
        await self._call(self._spool.keep, report)
        await self.bill_step(report)

    async def bill(self, group: GroupRecord) -> None:
        """Write the usage of a group. Writing it again changes nothing."""
        await self._call(self._ledger.group, group)

    async def bill_step(self, report: StepReport) -> None:
        """Write the usage of a step. Writing it again changes nothing."""
        await self._call(self._ledger.step, report, time.time())

    async def bill_lost(self, trained: Collection[str]) -> None:
        """Write missing usage of trained groups again, from their episodes."""
        for key in self._ledger.lost(trained):
            group = await self._call(self._spool.taken, key)
            logs.event(
                _log,
                "segment-lost",
                level=logging.WARNING,
                segment=f"{key}.jsonl",
                message="the group's usage was recounted from its episodes"
                if group is not None
                else "the group's episodes are lost too: restore them or the segment, or the bill is too low",
            )
            if group is not None:
                await self.bill(group)

    async def tested(self) -> list[GroupRecord]:
        """Groups of the test split that are already spooled."""
        return await self._call(self._spool.tested)

    async def evaluated(self, candidate: str) -> list[GroupRecord]:
        """Spooled groups of one candidate of the final test."""
        return await self._call(self._spool.evaluated, candidate)

    async def published(self, weights: WeightsManifest) -> bool:
        """Whether these weights are still in the store."""
        return await self._call(self._spool.published, weights)

    async def latest(self) -> PolicyVersion | None:
        """The version of the newest complete checkpoint."""
        return await self._call(self._spool.latest)

    def _claimed_give_up(self, group: GroupRecord, why: Abandoned) -> GroupRecord:
        self._spool.refuse_superseded(self._start_number)
        return self._spool.give_up(group, why)

    def _claimed_decide(self, record: Record) -> Record:
        self._spool.refuse_superseded(self._start_number)
        return self._spool.decided.write(record)

    def _claimed_conclude(self, summary: Summary) -> None:
        self._spool.refuse_superseded(self._start_number)
        self._spool.conclude(summary)
