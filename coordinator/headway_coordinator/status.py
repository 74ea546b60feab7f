"""Writes the coordinator's part of `.status`, at most every two seconds, and hears what others wrote.

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
from headway_api.grants import Grant
from headway_api.held import Accelerators, Holder, seconds
from headway_api.spec.lifecycle import BudgetSpec
from headway_api.status import RLEvalJobStatus, RLTrainingJobStatus
from headway_coordinator.conditions import OWN, OWN_OF_EVALUATION
from headway_coordinator.stored_job import WRITE_SECONDS, StoredJob

LEAST_SECONDS = 2.0
HEAR_SECONDS = 30.0
"""A status that does not change is written again after so long, for the answer says what others wrote."""
Status = RLTrainingJobStatus | RLEvalJobStatus

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Heard:
    """What others have written to the job meanwhile."""

    replicas: int | None = None
    """spec.rollout.replicas; it may change while the job runs."""
    remedy: str | None = None
    """A person's order to change the job."""
    lost: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Candidates whose servers the operator has given up: name -> reason and message."""
    held: Mapping[Holder, int] = field(default_factory=dict)
    """Accelerator seconds so far, as the operator counts them."""
    accelerators: Accelerators | None = None
    """The same pod by pod."""
    budget: BudgetSpec | Literal["unheard"] | None = "unheard"
    """spec.budget; it may change while the job runs."""
    grant: Grant | Literal["unheard", "unread"] | None = "unheard"
    """What the namespace's RLBudget lets the job use; `unread`: something that this version cannot read."""


class Sink(Protocol):
    """Where a status goes. Blocking. Returns what the job says by now, where that is known."""

    def __call__(self, status: dict[str, Any]) -> Heard | None: ...


def told(stored: StoredJob) -> RLTrainingJobStatus:
    """The coordinator's part of a training job's status as a predecessor left it; also which pause is over,
    and what accelerators the job holds."""
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
        budget=known.budget,
    )


def told_of_evaluation(stored: StoredJob) -> RLEvalJobStatus:
    """The coordinator's part of an evaluation's status, as far as a successor goes on from it; also what
    accelerators the job holds."""
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
        usage=known.usage,
        estimate=known.estimate,
        accelerators=known.accelerators,
        budget=known.budget,
    )


def _read(stored: StoredJob) -> dict[str, Any]:
    """The status as it is; empty where it cannot be had."""
    try:
        return stored.read_status()
    except Exception as error:  # the client's errors have no common base; the status starts afresh
        logs.event(_log, "status-not-read", level=logging.WARNING, error=str(error))
        return {}


def sink_of(stored: StoredJob) -> Sink:
    """The status of the job as it is stored; it hears what others have written to it."""
    return lambda status: _heard(stored.write_status(status))


def _heard(job: Mapping[str, Any]) -> Heard:
    """What a job, as the API server holds it, says to its coordinator."""
    candidates = job.get("status", {}).get("candidates", [])
    lost = {
        each["name"]: (each["lostReason"], each.get("lostMessage", ""))
        for each in candidates
        if "lostReason" in each
    }
    remedy = job.get("metadata", {}).get("annotations", {}).get(names.ANNOTATION_REMEDY)
    replicas = job.get("spec", {}).get("rollout", {}).get("replicas")
    return Heard(replicas, remedy, lost, *_held(job), _budget(job), _grant(job))


def _held(job: Mapping[str, Any]) -> tuple[dict[Holder, int], Accelerators | None]:
    told = job.get("status", {}).get("accelerators")
    try:
        found = None if told is None else Accelerators.model_validate(told)
        return seconds(found), found
    except (ValidationError, ValueError) as error:  # an operator of another version wrote it
        logs.event(_log, "accelerators-not-read", level=logging.WARNING, error=str(error))
        return {}, None


def _budget(job: Mapping[str, Any]) -> BudgetSpec | Literal["unheard"] | None:
    told = job.get("spec", {}).get("budget")
    try:
        return None if told is None else BudgetSpec.model_validate(told)
    except ValidationError as error:  # a definition of another version let it through
        logs.event(_log, "budget-not-read", level=logging.WARNING, error=str(error))
        return "unheard"


def _grant(job: Mapping[str, Any]) -> Grant | Literal["unread"] | None:
    told = job.get("status", {}).get("grant")
    try:
        return None if told is None else Grant.model_validate(told)
    except ValidationError as error:  # an operator of another version wrote it
        logs.event(_log, "grant-not-read", level=logging.WARNING, error=str(error))
        return "unread"


def log_sink(status: dict[str, Any]) -> None:
    """For a coordinator outside a cluster: the status as a log line."""
    logs.event(_log, "status", status=status)


class Writer:
    """Keeps the status in step with `current`, as often as allowed; twice the same only to hear the answer.

    A write that fails is tried again with newer content; the job does not wait for it. `on_heard` is told
    what the sink returns, and `on_written` that a write stands.
    """

    def __init__(
        self,
        sink: Sink,
        current: Callable[[], Status],
        on_heard: Callable[[Heard], None] = lambda heard: None,
        on_written: Callable[[], None] = lambda: None,
    ) -> None:
        self._sink = sink
        self._current = current
        self._on_heard = on_heard
        self._on_written = on_written
        self.waits = False
        """Whether somebody waits for an answer: then it is written as often as allowed, to hear it."""
        self._changed = asyncio.Event()
        self._written: dict[str, Any] | None = None
        self._heard_at = -math.inf
        self.failures = 0

    def changed(self) -> None:
        """Something worth telling has happened."""
        self._changed.set()

    async def run(self) -> None:
        """Write after each change, and now and then without one, until cancelled."""
        while True:
            await self.flush()
            await asyncio.sleep(LEAST_SECONDS)
            try:
                async with asyncio.timeout(0 if self.waits else 5 * LEAST_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def settle(self, seconds: float) -> bool:
        """Write what is to be the last word, again and again for `seconds`; says whether it stands."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not await self.flush():
                    await asyncio.sleep(LEAST_SECONDS)
                return True
        return False

    async def flush(self) -> bool:
        """Write now, unless nothing is new; says whether the status is as it should be."""
        self._changed.clear()
        status = self._current().as_object()
        stale = self.waits or time.monotonic() - self._heard_at >= HEAR_SECONDS
        if status == self._written and not stale:
            return True
        try:
            async with asyncio.timeout(2 * WRITE_SECONDS):
                heard = await asyncio.to_thread(self._sink, status)
        except (
            Exception
        ) as error:  # the client's errors have no common base; training goes on without a status
            self.failures += 1
            logs.event(_log, "status-write-failed", level=logging.WARNING, error=str(error))
            return False
        self._written, self._heard_at = status, time.monotonic()
        if heard is not None:
            self._on_heard(heard)
        self._on_written()
        return True
