"""Runs checks and reports their results one by one. Preflights of training and evaluation jobs share this."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import aiohttp

from headway_api import logs, names, pod_lacks
from headway_api import rows as tables
from headway_api.base_model import fetch
from headway_api.exits import JobError, not_final
from headway_api.opening import opening
from headway_api.sandbox_api import FinishReply, Problem, ResetReply
from headway_api.seeds import seed
from headway_api.spec.evaluation import RLEvalJobSpec
from headway_api.spec.judge import field_of
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.status import Check, Preflight
from headway_api.store import Store
from headway_coordinator.faults import InfraError, InvalidAnswerError, PermanentInfraError
from headway_coordinator.http import PeerUnreachableError, UpstreamError
from headway_coordinator.judges.answering import Judges
from headway_coordinator.judges.judge import PASSING, Judge
from headway_coordinator.ledger.books import Books
from headway_coordinator.preflight import checks
from headway_coordinator.sandboxes import RESOURCES, Broker

LEASE_ID = "preflight"
NOWHERE = {"base_url": "http://127.0.0.1:9/v1", "api_key": "none", "prompt": "", "messages": [], "tools": []}
"""The episode that a sandboxed agent gets. Only its start is checked, so nothing listens at the URL."""
VISITS = 3
TEXT_LIMIT = 1024
ANSWER_SECONDS, PAUSE_SECONDS = 5.0, 1.0
SANDBOX_ENDED = "SandboxEnded"
"""The reason that the broker reports if a sandbox's process ended."""
IMAGE = "spec.environment.image"
OTHER_IMAGE = "a new sandbox is created; if all end like this, build the image on Headway's sandbox image"
MORE_MEMORY = "raise its memory (limits.memory)"

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass
class Checklist:
    """Runs checks and collects their results. `report` is called after each check."""

    spec: RLTrainingJobSpec | RLEvalJobSpec
    report: Callable[[Preflight], None]
    begun: bool = False
    """Whether a predecessor passed the preflight. If so, no failure of a basic check is permanent."""
    results: list[Check] = field(default_factory=list)

    def prices(self, books: Books) -> None:
        """Check that the job's price book exists and can be read. Blocking.

        Raises:
            JobError: `PriceBookMissing` or `PriceBookInvalid`.
        """
        self._need(names.CHECK_PRICES, books.first, lambda book: f"{book.name}, SHA-256 {book.digest[:12]}")

    def budget(self, fits: Callable[[], str]) -> None:
        """Check that the budget has room for the worst case of a group.

        Args:
            fits: does the check, and returns the message.

        Raises:
            JobError: `BudgetTooSmall`, under every policy.
        """
        self._need("Budget", fits, str)

    async def agent(self, http: aiohttp.ClientSession, url: str) -> None:
        """Check that the agent's service answers.

        Any HTTP status counts as an answer, because an agent need not support any request except prompts.

        Raises:
            JobError: `AgentUnreachable`. It can be retried, because the agent may only be late.
        """
        field = "spec.agent.http." + (
            "url" if self.spec.agent.http and self.spec.agent.http.url else "service"
        )
        deadline = self.spec.pending_deadline_seconds
        what = f"{url} does not answer; deploy the agent, or correct its address"
        absent = Check(name=names.CHECK_AGENT, passed=False, message=what, field=field)
        try:
            await until_answered(http, url, deadline, lambda: self._waiting(absent))
        except TimeoutError as error:
            what = f"{url} did not answer within {deadline} s; deploy the agent, or correct its address"
            raise JobError("AgentUnreachable", what, field=field, permanent=False) from error
        self._passed(names.CHECK_AGENT, f"{url} answers")

    async def judges(self, judges: Judges, store: Store, cache: Path) -> None:
        """Check that each judge answers, and wait for those that are late.

        Before that, check the model of each judge that the job serves itself. The servers of such a judge
        only start when this check waits for them.

        Raises:
            JobError: `JudgeUnreachable` or similar, if a judge did not answer in time. This can be retried.
                `ModelUnavailable`: a judge's model does not exist.
        """
        if isinstance(self.spec, RLTrainingJobSpec) and self.spec.preflight.policy == "Off":
            return
        await asyncio.to_thread(self._judge_models, store, cache)
        for name, judge in judges.by_name.items():
            await self._judge(names.check_of_judge(name), judge)

    def _judge_models(self, store: Store, cache: Path) -> None:
        for judge in self.spec.judges:
            if (model := judge.model) is not None:
                where = field_of(judge.name, "model.base")
                look = partial(fetch, model, store, cache, weights=False, field=where)
                self._need(f"JudgeModel {judge.name}", look, partial(_is_there, model.base))

    async def _judge(self, check: str, judge: Judge) -> None:
        ends = time.monotonic() + self.spec.pending_deadline_seconds
        while (fault := await judge.probe()) is not None:
            cause = fault.cause
            assert cause is not None, "a judge's fault says whose it is"
            error = JobError(cause.reason, cause.message, field=cause.field)
            if cause.reason not in PASSING:
                self._failed(check, error)
                return
            if time.monotonic() > ends:
                raise JobError(cause.reason, cause.message, field=cause.field, permanent=False)
            message = cause.message[:TEXT_LIMIT]
            self._waiting(Check(name=check, passed=False, message=message, field=cause.field))
            await asyncio.sleep(PAUSE_SECONDS)
        self._passed(check, f"{judge.shown} answers")

    async def _visit(
        self, row: tables.Row, broker: Broker, start_number: int, judges: Judges | None = None
    ) -> tuple[ResetReply, FinishReply] | None:
        spec = self.spec
        try:
            async with asyncio.timeout(spec.pending_deadline_seconds):
                async with self._reporting_waits(broker):
                    first, reply = await self._visit_with_retries(
                        row, broker, f"{LEASE_ID}-{start_number}", judges or Judges()
                    )
        except InvalidAnswerError as fault:
            what = f"the environment gave an invalid answer: {fault}"
            self._failed("Environment", JobError("AnswerUnusable", what, field="spec.environment.entrypoint"))
            return None
        except PermanentInfraError as fault:
            self._failed("Environment", JobError(fault.reason, str(fault), field=fault.field))
            return None
        except (InfraError, TimeoutError) as fault:
            if isinstance(fault, InfraError) and (cause := fault.cause) is not None:
                self._failed("Environment", JobError(cause.reason, cause.message, field=cause.field))
                return None
            text = str(fault) or f"no sandbox within {spec.pending_deadline_seconds} s"
            raise JobError(
                "SandboxUnavailable", text, field="spec.environment.image", permanent=False
            ) from fault
        self._passed(
            "Environment", f"{len(first.messages)} messages and {len(first.tools)} tools after reset"
        )
        return first, reply

    @asynccontextmanager
    async def _reporting_waits(self, broker: Broker) -> AsyncIterator[None]:
        """During the block, report the broker's problem while it cannot create a sandbox."""
        watch = asyncio.create_task(self._report_waits(broker))
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _report_waits(self, broker: Broker) -> None:
        reported: Check | None = None
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                problem = (await broker.pool()).problem
            except (UpstreamError, PeerUnreachableError):
                continue
            waits = None if problem is None else _waits_for(problem)
            if waits != reported:
                reported = waits
                self._waiting(waits)

    def _waiting(self, waits: Check | None) -> None:
        self.report(Preflight(state="Running", checks=self.results, waits_for=waits))

    async def _visit_with_retries(
        self, row: tables.Row, broker: Broker, lease: str, judges: Judges
    ) -> tuple[ResetReply, FinishReply]:
        """Play an episode without a turn in a sandbox: reset, start a sandboxed agent, and finish.

        If the environment's own code fails, try again, up to `VISITS` times in all. So many failures are not
        chance.
        """
        visit = 1
        while True:
            try:
                return await self._in_sandbox(
                    row, broker, lease if visit == 1 else f"{lease}-{visit}", judges
                )
            except InfraError as fault:
                if visit == VISITS or fault.cause is None or isinstance(fault, PermanentInfraError):
                    raise
                logs.event(_log, "environment-failed", level=logging.WARNING, error=str(fault))
            visit += 1

    async def _in_sandbox(
        self, row: tables.Row, broker: Broker, lease: str, judges: Judges
    ) -> tuple[ResetReply, FinishReply]:
        spec = self.spec
        seconds, timeout = spec.environment.sandbox.deadline_seconds, spec.rollout.timeout_seconds
        async with broker.lease(lease, seconds, timeout) as sandbox:
            first = await sandbox.reset(row, seed(spec.seed, LEASE_ID))
            if (program := spec.agent.sandboxed) is not None:
                await sandbox.agent(program.command, NOWHERE, {})
            messages = opening(first.messages, spec.agent.effective_builtin.system_prompt)

            async def finish(names: list[str]) -> FinishReply:
                return await sandbox.finish(messages, True, checks.lowest_report(spec), judges=names)

            return first, await judges.finished(sandbox, finish)

    def _need(self, name: str, check: Callable[[], T], found: Callable[[T], str]) -> T:
        try:
            with not_final(self.begun):
                value = check()
        except JobError as error:
            if error.permanent:
                self._failed(name, error)
                self.report(Preflight(state="Failed", checks=self.results))
            raise
        self._passed(name, found(value))
        return value

    def _try(self, name: str, check: Callable[[], str]) -> None:
        try:
            self._passed(name, check())
        except JobError as error:
            self._failed(name, error)

    def _passed(self, name: str, message: str, *, warning: bool = False) -> None:
        level = logging.WARNING if warning else logging.INFO
        logs.event(_log, "check-passed", level=level, check=name, message=message)
        self.results.append(Check(name=name, passed=True, warning=warning, message=message[:TEXT_LIMIT]))
        self.report(Preflight(state="Running", checks=self.results))

    def _failed(self, name: str, error: JobError) -> None:
        found = error.termination
        logs.event(
            _log, "check-failed", level=logging.ERROR, check=name, field=found.field, message=found.message
        )
        text = f"{found.reason}: {found.message}"[:TEXT_LIMIT]
        self.results.append(Check(name=name, passed=False, message=text, field=found.field))
        self.report(Preflight(state="Running", checks=self.results))

    @property
    def failed(self) -> list[Check]:
        """The checks that failed so far."""
        return [check for check in self.results if not check.passed]

    def conclude(self, *, enforce: bool) -> None:
        """End the preflight.

        Raises:
            JobError: a check failed, and the policy enforces it.
        """
        failed = self.failed
        state = "Passed" if not failed else "Failed" if enforce else "Warned"
        self.report(Preflight(state=state, checks=self.results))
        if failed and enforce:
            reason, _, message = failed[0].message.partition(": ")
            raise JobError(reason, message, field=failed[0].field)


def _is_there(base: str, _folder: Path) -> str:
    return f"{base} exists"


def _waits_for(problem: Problem) -> Check:
    """The check that shows why the broker has no sandbox, with the field to change."""
    text, field = problem.message, problem.field
    if field is None and problem.reason == SANDBOX_ENDED:
        field, fix = (RESOURCES, MORE_MEMORY) if "OOMKilled" in text else (IMAGE, OTHER_IMAGE)
        text = f"{text.rstrip('. ')}; {fix}"
    elif field is None:
        text = pod_lacks.of_creation(names.SANDBOX, text)
    return Check(name="Environment", passed=False, message=text[:TEXT_LIMIT], field=field)


async def until_answered(
    http: aiohttp.ClientSession, url: str, deadline: float, silent: Callable[[], None] = lambda: None
) -> None:
    """Return once `url` answers with any status. `silent` is called once, at the first failed try.

    Raises:
        TimeoutError: there was no answer within `deadline` seconds.
    """
    reported = False
    async with asyncio.timeout(deadline):
        while True:
            try:
                async with http.get(url, timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS)):
                    return
            except (aiohttp.ClientError, TimeoutError) as error:
                logs.event(_log, "agent-unreachable", level=logging.WARNING, error=str(error))
                if not reported:
                    reported = True
                    silent()
            await asyncio.sleep(PAUSE_SECONDS)


def rows_message(rows: list[tables.Row]) -> str:
    """The message of a passed check of rows: their number and columns."""
    return f"{len(rows)} rows with columns {', '.join(rows[0])}"
