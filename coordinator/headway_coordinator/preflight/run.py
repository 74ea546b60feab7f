"""Runs the checks, in the order in which each needs the ones before, and acts on `spec.preflight.policy`.

What the job cannot run without (its bucket, data, model) fails it under every policy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import aiohttp
from pydantic import ValidationError

from headway_api import logs, lora_targets, warm_start
from headway_api.artifacts import Layout
from headway_api.base_model import fetch
from headway_api.exits import JobError, not_final
from headway_api.sandbox_api import FinishReply, ResetReply
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.status import Check, Preflight
from headway_api.store import Denied, NotFound, Store, bucket_unavailable
from headway_coordinator import dataset
from headway_coordinator.agents.builtin import opening
from headway_coordinator.dataset import Data
from headway_coordinator.faults import InfraFault, PermanentFault
from headway_coordinator.preflight import checks, tensors
from headway_coordinator.sandboxes import Broker
from headway_coordinator.seeds import seed
from headway_coordinator.trajectory import render

LEASE_ID = "preflight"
NOWHERE = {"base_url": "http://127.0.0.1:9/v1", "api_key": "none", "prompt": "", "messages": [], "tools": []}
"""An episode for a program of which only its start is checked: nobody answers there."""
TEXT_LIMIT = 1024
ANSWER_SECONDS, PAUSE_SECONDS = 5.0, 1.0

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass
class Ready:
    """What the checks found and the job needs."""

    data: Data
    renderer: render.Renderer
    context_length: int


@dataclass
class Runner:
    """Collects results; `report` is called after each."""

    spec: RLTrainingJobSpec
    layout: Layout
    report: Callable[[Preflight], None]
    begun: bool = False
    """A predecessor got past all of this: none of the basics failing is final."""
    results: list[Check] = field(default_factory=list)

    def basics(self, store: Store, cache: Path) -> Ready:
        """Data, model and tokenizer. Blocking: run it in a thread.

        Raises:
            JobError: whatever is missing, under every policy.
        """
        spec = self.spec
        train = self._need("Dataset", lambda: dataset.load(spec.data.train, store, "train"), _rows)
        validation: list[dataset.Row] = []
        if (held_out := spec.data.validation) is not None:
            rows = self._need("Validation", lambda: dataset.load(held_out, store, "validation"), _rows)
            validation = rows[: spec.evaluation.max_rows]
        self._need("Batch", lambda: checks.batch(len(train), spec), str)
        folder = self._need(
            "Model",
            lambda: fetch(spec.model, store, cache, weights=False),
            lambda _: f"{spec.model.base} is there",
        )
        length = self._need(
            "ContextLength", lambda: checks.context_length(folder, spec), lambda n: f"{n} tokens"
        )
        modules: list[str] | None = None
        lora, start = spec.model.effective_lora, spec.model.warm_start
        # Like the learner: what a job began with is never asked for again, and may be gone.
        if start is not None and self._resumes(store):
            start = None
        if lora is not None and (lora.targets or start is not None):
            modules = self._need(
                "LoraTargets",
                lambda: checks.lora_modules(lora, tensors.shapes(spec.model, folder, store)),
                lambda found: f"linear modules are {lora_targets.ends(found)}",
            )
        if start is not None:
            self._need(
                "WarmStart",
                lambda: warm_start.fetch(spec.model, folder, store, cache, weights=False, modules=modules),
                lambda start: start.sentence,
            )
        parser = spec.agent.effective_builtin.tool_call_parser
        chosen = self._need("Tokenizer", lambda: render.load(folder, parser)[0], checks.renderer)
        return Ready(Data(train=train, validation=validation), chosen, length)

    def _resumes(self, store: Store) -> bool:
        """Whether the learner has a step to go on from. Whether that step can be used is for it to say."""
        try:
            store.get(self.layout.latest)
        except NotFound:
            return False
        except Denied as error:
            with not_final(self.begun):
                raise bucket_unavailable(self.layout.latest, error) from error
        return True

    async def agent(self, http: aiohttp.ClientSession, url: str) -> None:
        """The agent's service answers: anything at all, for it is not known what it takes but prompts.

        Raises:
            JobError: `AgentUnreachable`, retriable: it may only be late.
        """
        field = "spec.agent.http." + (
            "url" if self.spec.agent.http and self.spec.agent.http.url else "service"
        )
        deadline = self.spec.pending_deadline_seconds
        try:
            await until_answered(http, url, deadline)
        except TimeoutError as error:
            what = f"{url} did not answer within {deadline} s; is the agent deployed, and listening there?"
            raise JobError("AgentUnreachable", what, field=field, permanent=False) from error
        self._passed("Agent", f"{url} answers")

    async def environment(self, ready: Ready, broker: Broker, incarnation: int) -> None:
        """One real sandbox: import, reset and judgement, then the arithmetic that needs its prompt.

        Raises:
            JobError: a check failed and the policy is Enforce, or no sandbox was to be had.
        """
        if self.spec.preflight.policy == "Off":
            self.report(Preflight(state="Skipped", checks=self.results))
            return
        found = await self._visit(ready.data.train[0], broker, incarnation)
        if found is not None:
            first, reply = found
            self._try("Reward", lambda: checks.reward(reply, self.spec))
            self._try(
                "Context", lambda: checks.context(first, ready.renderer, ready.context_length, self.spec)
            )
        self._conclude()

    async def _visit(
        self, row: dataset.Row, broker: Broker, incarnation: int
    ) -> tuple[ResetReply, FinishReply] | None:
        spec = self.spec
        try:
            async with asyncio.timeout(spec.pending_deadline_seconds):
                leased = broker.lease(
                    f"{LEASE_ID}-{incarnation}",
                    spec.environment.sandbox.deadline_seconds,
                    spec.rollout.timeout_seconds,
                )
                async with leased as sandbox:
                    first = await sandbox.reset(row, seed(spec.seed, LEASE_ID))
                    if (program := spec.agent.sandboxed) is not None:
                        await sandbox.agent(program.command, NOWHERE, {})
                    messages = opening(first.messages, spec.agent.effective_builtin.system_prompt)
                    reply = await sandbox.finish(messages, True, checks.lowest_report(spec))
        except ValidationError as error:
            what = f"the environment answered what it must not: {error}"
            self._failed("Environment", JobError("AnswerUnusable", what, field="spec.environment.entrypoint"))
            return None
        except PermanentFault as fault:
            self._failed("Environment", JobError(fault.reason, str(fault), field=fault.field))
            return None
        except (InfraFault, TimeoutError) as fault:
            text = str(fault) or f"no sandbox within {spec.pending_deadline_seconds} s"
            raise JobError(
                "SandboxUnavailable", text, field="spec.environment.image", permanent=False
            ) from fault
        self._passed(
            "Environment", f"{len(first.messages)} messages and {len(first.tools)} tools after reset"
        )
        return first, reply

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

    def _passed(self, name: str, message: str) -> None:
        logs.event(_log, "check-passed", check=name, message=message)
        self.results.append(Check(name=name, passed=True, message=message[:TEXT_LIMIT]))
        self.report(Preflight(state="Running", checks=self.results))

    def _failed(self, name: str, error: JobError) -> None:
        found = error.termination
        logs.event(
            _log, "check-failed", level=logging.ERROR, check=name, field=found.field, message=found.message
        )
        text = f"{found.reason}: {found.message}"[:TEXT_LIMIT]
        self.results.append(Check(name=name, passed=False, message=text, field=found.field))
        self.report(Preflight(state="Running", checks=self.results))

    def _conclude(self) -> None:
        failed = [check for check in self.results if not check.passed]
        enforce = self.spec.preflight.policy == "Enforce"
        state = "Passed" if not failed else "Failed" if enforce else "Warned"
        self.report(Preflight(state=state, checks=self.results))
        if failed and enforce:
            reason, _, message = failed[0].message.partition(": ")
            raise JobError(reason, message, field=failed[0].field)


async def until_answered(http: aiohttp.ClientSession, url: str, deadline: float) -> None:
    """Return once `url` answers, whatever it says.

    Raises:
        TimeoutError: it did not within `deadline` seconds.
    """
    async with asyncio.timeout(deadline):
        while True:
            try:
                async with http.get(url, timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS)):
                    return
            except (aiohttp.ClientError, TimeoutError) as error:
                logs.event(_log, "agent-unreachable", level=logging.WARNING, error=str(error))
            await asyncio.sleep(PAUSE_SECONDS)


def _rows(rows: list[dataset.Row]) -> str:
    return f"{len(rows)} rows with columns {', '.join(rows[0])}"
