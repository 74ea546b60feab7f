"""Writes the coordinator's part of `.status`, at most every two seconds, and reads what others wrote.

Every write carries everything that the coordinator owns (`stored_job`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import ValidationError

from headway_api import logs, names
from headway_api.accelerators import Accelerators, Holder, seconds
from headway_api.grants import Grant
from headway_api.spec.lifecycle import BudgetSpec
from headway_api.status import RLEvalJobStatus, RLTrainingJobStatus
from headway_coordinator.conditions import OWN, OWN_OF_EVALUATION
from headway_coordinator.stored_job import WRITE_SECONDS, StoredJob

LEAST_SECONDS = 2.0
REFRESH_SECONDS = 30.0
"""Seconds after which an unchanged status is written again, because the answer shows what others wrote."""
Status = RLTrainingJobStatus | RLEvalJobStatus

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobUpdate:
    """What users and the operator have written to the job."""

    replicas: int | None = None
    """spec.rollout.replicas; it may change while the job runs."""
    remedy: str | None = None
    """A person's order for a remedy."""
    lost: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Candidates whose servers the operator has abandoned: name -> reason and message."""
    accelerator_seconds: Mapping[Holder, int] = field(default_factory=dict)
    """Accelerator seconds so far, as the operator counts them."""
    accelerators: Accelerators | None = None
    """Accelerator seconds so far by pod, as the operator counts them."""
    budget: BudgetSpec | Literal["unknown"] | None = "unknown"
    """spec.budget; it may change while the job runs."""
    grant: Grant | Literal["unknown", "unread"] | None = "unknown"
    """The namespace's RLBudget grant for the job. `unread`: this version cannot read it."""


class Sink(Protocol):
    """Writes a status. Blocking. Returns what others have written to the job, if the answer shows it."""

    def __call__(self, status: dict[str, Any]) -> JobUpdate | None: ...


def previous_status(stored: StoredJob) -> RLTrainingJobStatus:
    """The coordinator's part of a training job's status as a predecessor left it.

    It also has two fields of the operator: which pause is over, and which accelerators the job holds.
    """
    try:
        known = RLTrainingJobStatus.model_validate(_read(stored))
    except ValidationError as error:
        logs.event(_log, "status-not-read", level=logging.WARNING, error=str(error))
        return RLTrainingJobStatus()
    return RLTrainingJobStatus(
        conditions=[condition for condition in known.conditions if condition.type in OWN],
        progress=known.progress,
        reward=known.reward,
        validation=known.validation,
        test=known.test,
        usage=known.usage,
        estimate=known.estimate,
        checkpoints=known.checkpoints,
        tracking=known.tracking,
        signals=known.signals,
        pause=known.pause,
        resumed_pause=known.resumed_pause,
        algorithm=known.algorithm,
        remediations=known.remediations,
        remedy_order=known.remedy_order,
        accelerators=known.accelerators,
        artifacts=known.artifacts,
        budget=known.budget,
    )


def previous_evaluation_status(stored: StoredJob) -> RLEvalJobStatus:
    """The coordinator's part of an evaluation's status as a predecessor left it.

    It also has a field of the operator: which accelerators the job holds.
    """
    try:
        known = RLEvalJobStatus.model_validate(_read(stored))
    except ValidationError as error:
        logs.event(_log, "status-not-read", level=logging.WARNING, error=str(error))
        return RLEvalJobStatus()
    return RLEvalJobStatus(
        conditions=[condition for condition in known.conditions if condition.type in OWN_OF_EVALUATION],
        progress=known.progress,
        results=known.results,
        headline=known.headline,
        gate=known.gate,
        usage=known.usage,
        estimate=known.estimate,
        accelerators=known.accelerators,
        artifacts=known.artifacts,
        budget=known.budget,
        tracking=known.tracking,
    )


def has_report(status: RLTrainingJobStatus | RLEvalJobStatus) -> bool:
    """Whether report.json was written. The operator then allows `FINISHING_SECONDS` beyond the deadline."""
    return status.artifacts is not None and status.artifacts.report is not None


def _read(stored: StoredJob) -> dict[str, Any]:
    """The current status; empty if it cannot be read."""
    try:
        return stored.read_status()
    except Exception as error:  # the client's errors have no common base; the status starts afresh
        logs.event(_log, "status-not-read", level=logging.WARNING, error=str(error))
        return {}


def sink_of(stored: StoredJob) -> Sink:
    """A sink for the stored job's status. It returns what others have written to the job."""
    return lambda status: _update(stored.write_status(status))


def _update(job: Mapping[str, Any]) -> JobUpdate:
    """What users and the operator have written into a stored job."""
    candidates = job.get("status", {}).get("candidates", [])
    lost = {
        each["name"]: (each["lostReason"], each.get("lostMessage", ""))
        for each in candidates
        if "lostReason" in each
    }
    remedy = job.get("metadata", {}).get("annotations", {}).get(names.ANNOTATION_REMEDY)
    replicas = job.get("spec", {}).get("rollout", {}).get("replicas")
    return JobUpdate(replicas, remedy, lost, *_accelerators(job), _budget(job), _grant(job))


def _accelerators(job: Mapping[str, Any]) -> tuple[dict[Holder, int], Accelerators | None]:
    stored = job.get("status", {}).get("accelerators")
    try:
        found = None if stored is None else Accelerators.model_validate(stored)
        return seconds(found), found
    except (ValidationError, ValueError) as error:  # an operator of another version wrote it
        logs.event(_log, "accelerators-not-read", level=logging.WARNING, error=str(error))
        return {}, None


def _budget(job: Mapping[str, Any]) -> BudgetSpec | Literal["unknown"] | None:
    stored = job.get("spec", {}).get("budget")
    try:
        return None if stored is None else BudgetSpec.model_validate(stored)
    except ValidationError as error:  # the installed CRD is of another version, and accepted this
        logs.event(_log, "budget-not-read", level=logging.WARNING, error=str(error))
        return "unknown"


def _grant(job: Mapping[str, Any]) -> Grant | Literal["unread"] | None:
    stored = job.get("status", {}).get("grant")
    try:
        return None if stored is None else Grant.model_validate(stored)
    except ValidationError as error:  # an operator of another version wrote it
        logs.event(_log, "grant-not-read", level=logging.WARNING, error=str(error))
        return "unread"


def log_sink(status: dict[str, Any]) -> None:
    """Log the status, for a coordinator outside a cluster."""
    logs.event(_log, "status", status=status)


class Writer:
    """Keeps the stored status equal to `current`, with at most one write every `LEAST_SECONDS`.

    It writes an unchanged status only because the answer shows what others wrote.

    A failed write is retried with the status of that time; the job does not wait for it. `on_update` receives
    what the sink returns. `on_written` is called after a successful write.
    """

    def __init__(
        self,
        sink: Sink,
        current: Callable[[], Status],
        on_update: Callable[[JobUpdate], None] = lambda update: None,
        on_written: Callable[[], None] = lambda: None,
    ) -> None:
        self._sink = sink
        self._current = current
        self._on_update = on_update
        self._on_written = on_written
        self.waits = False
        """Whether the job waits for something that others write. Then the status is written every
        `LEAST_SECONDS`."""
        self._changed = asyncio.Event()
        self._written: dict[str, Any] | None = None
        self._answered_at = -math.inf
        self.failures = 0

    def changed(self) -> None:
        """Note that the status has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Write after each change, and at intervals without one, until cancelled."""
        while True:
            await self.flush()
            await asyncio.sleep(LEAST_SECONDS)
            try:
                async with asyncio.timeout(0 if self.waits else 5 * LEAST_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def settle(self, seconds: float) -> bool:
        """Write the final status, and retry for up to `seconds`. Returns whether it was written."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not await self.flush():
                    await asyncio.sleep(LEAST_SECONDS)
                return True
        return False

    async def flush(self) -> bool:
        """Write now, unless nothing is new. Returns whether the stored status is current."""
        self._changed.clear()
        status = self._current().as_object()
        stale = self.waits or time.monotonic() - self._answered_at >= REFRESH_SECONDS
        if status == self._written and not stale:
            return True
        try:
            async with asyncio.timeout(2 * WRITE_SECONDS):
                update = await asyncio.to_thread(self._sink, status)
        except (
            Exception
        ) as error:  # the client's errors have no common base; training goes on without a status
            self.failures += 1
            logs.event(_log, "status-write-failed", level=logging.WARNING, error=str(error))
            return False
        self._written, self._answered_at = status, time.monotonic()
        if update is not None:
            self._on_update(update)
        self._on_written()
        return True
