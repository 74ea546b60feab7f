"""Plays scripted episodes without a model. Each script has its own sandbox, tool calls and last message."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headway_analysis.preflight import playing
from headway_analysis.preflight.evidence import PlayedScript, Script
from headway_api import logs
from headway_api.opening import opening
from headway_api.records import Judgement
from headway_api.sandbox_api import FinishReply, FinishRequest, ResetRequest, ToolCall
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.faults import InfraError
from headway_coordinator.judges.answering import Judges
from headway_coordinator.preflight.checks import lowest_report
from headway_coordinator.sandboxes import Broker, Sandbox

TRIES: Final = 2
"""The most tries of a script whose sandbox or judge failed without a fault of the environment."""
ERROR_LENGTH: Final = 2000
JUDGES: Final = "spec.judges["
"""The prefix of the spec's field that a judge's fault names."""
Bill = Callable[[str, Sequence[Judgement]], Awaitable[None]]
"""Stores and bills the judgements of one try, under the try's unique name."""
_log = logging.getLogger(__name__)


class _LostError(Exception):
    """The platform or a judge failed, not the environment. `so_far` is the script's result before that."""

    def __init__(self, so_far: PlayedScript) -> None:
        super().__init__(so_far.error)
        self.so_far = so_far


async def _free(whose: str, found: Sequence[Judgement]) -> None:
    """Bill nothing."""


@dataclass
class _Try:
    """One try of a script, and its questions to judges."""

    lease: str
    judgements: list[Judgement] = field(default_factory=list)
    judge: str | None = None
    """The judge for whose answer the try waits now; None: it waits for none."""

    def waits(self, judge: str | None) -> None:
        self.judge = judge

    def others(self, fault: InfraError | TimeoutError) -> bool:
        """Whether something other than the environment ended the try."""
        if isinstance(fault, TimeoutError):
            return self.judge is not None
        return fault.cause is None or (fault.cause.field or "").startswith(JUDGES)

    def failed(self, fault: InfraError | TimeoutError, seconds: float) -> playing.NoReplyError:
        """The failure in the form in which a script records it."""
        if isinstance(fault, InfraError):
            cause = fault.cause.reason if fault.cause is not None else None
            return playing.NoReplyError(str(fault)[:ERROR_LENGTH], cause)
        message = str(fault) or f"the episode did not end within {seconds:g} s"
        if self.judge is None:
            return playing.NoReplyError(message[:ERROR_LENGTH])
        return playing.NoReplyError(
            f"{message}; it was waiting for judge {self.judge}"[:ERROR_LENGTH], "JudgeSlow"
        )


@dataclass
class Player:
    """Plays scripts in sandboxes, and collects the environment's answers."""

    spec: RLTrainingJobSpec
    broker: Broker
    limiter: AdaptiveSemaphore
    """Bounds the scripts that run at once."""
    lease: str
    """The prefix of the names of all leases."""
    judges: Judges = field(default_factory=Judges)
    """The judges that the environment may ask."""
    bill: Bill = _free
    """Called at the end of each try."""
    changed: Callable[[], None] = lambda: None
    """Called when `waiting` has changed."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Lease -> why its lost script is not retried yet."""
    grouped: bool = False
    """Whether the environment rewards whole groups; its sandboxes say so at reset."""

    async def play(self, scripts: Sequence[Script]) -> list[PlayedScript]:
        """Play all scripts, and return their results in the same order.

        A script that names another one in `after` waits for it.

        Raises:
            JobError: `Superseded`: another coordinator has claimed the sandboxes.
        """
        over = {(script.check, script.label): asyncio.Event() for script in scripts}
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(self._in_turn(number, script, over))
                for number, script in enumerate(scripts)
            ]
        return [task.result() for task in running]

    async def _in_turn(
        self, number: int, script: Script, over: Mapping[tuple[str, str], asyncio.Event]
    ) -> PlayedScript:
        before = over.get((script.check, script.after)) if script.after is not None else None
        if before is not None and script.after != script.label:
            await before.wait()
        try:
            async with self.limiter:
                return await self._once_more(f"{self.lease}-{number}", script)
        finally:
            over[script.check, script.label].set()

    async def _once_more(self, lease: str, script: Script) -> PlayedScript:
        """Play a script. It is played again if its try was lost without a fault of the environment."""
        found = PlayedScript(script)
        for attempt in range(TRIES):
            await self._judges_ready(lease, found.error)
            one = _Try(f"{lease}-{attempt}")
            try:
                return await self._leased(one, script)
            except _LostError as lost:
                found = lost.so_far
                logs.event(_log, "script-failed", level=logging.WARNING, error=str(lost))
            finally:
                if one.judgements:
                    await self.bill(one.lease, one.judgements)
        return found

    async def _judges_ready(self, lease: str, why: str | None) -> None:
        """Return once each judge that failed answers again. `why` says why the last try was lost, if any."""
        if why is None:
            await self.judges.ready()
            return
        self.waiting[lease] = why
        self.changed()
        try:
            await self.judges.ready()
        finally:
            del self.waiting[lease]
            self.changed()

    async def _leased(self, one: _Try, script: Script) -> PlayedScript:
        """Play a script in a sandbox of its own.

        Raises:
            _LostError: something other than the environment ended the try.
        """
        rollout, began = self.spec.rollout, time.monotonic()
        seconds = self.spec.environment.sandbox.deadline_seconds
        try:
            waiting = asyncio.timeout(rollout.timeout_seconds)
            leased = self.broker.lease(one.lease, seconds, rollout.timeout_seconds)
            async with waiting, leased as sandbox:
                waiting.reschedule(None)
                waited = time.monotonic() - began
                return dataclasses.replace(await self._played(sandbox, script, one), waited=waited)
        except TimeoutError:
            text = f"no sandbox within {rollout.timeout_seconds:g} s"
            raise _LostError(PlayedScript(script, error=text, waited=time.monotonic() - began)) from None
        except InfraError as fault:
            raise _LostError(PlayedScript(script, error=str(fault)[:ERROR_LENGTH])) from fault

    async def _played(self, sandbox: Sandbox, script: Script, one: _Try) -> PlayedScript:
        """The environment's answers to a script.

        Raises:
            _LostError: the sandbox was lost, or a judge failed.
        """
        seconds = self.spec.rollout.timeout_seconds
        play, ends = playing.played(script, time.monotonic), time.monotonic() + seconds
        request, lost = next(play), False
        try:
            while True:
                try:
                    async with asyncio.timeout(ends - time.monotonic()):
                        reply = await self._asked(sandbox, request, one)
                except (InfraError, TimeoutError) as fault:
                    lost = one.others(fault)
                    request = play.throw(one.failed(fault, seconds))
                else:
                    request = play.send(reply)
        except StopIteration as end:
            found: PlayedScript = end.value
        if lost:
            raise _LostError(found)
        # If the agent reports its own reward, a script has no reward, because no agent took part.
        return dataclasses.replace(found, reward=None) if lowest_report(self.spec) else found

    async def _asked(self, sandbox: Sandbox, request: playing.Request, one: _Try) -> playing.Reply:
        if isinstance(request, ResetRequest):
            first = await sandbox.reset(request.row, request.seed)
            self.grouped |= first.grouped
            return first
        if isinstance(request, ToolCall):
            return await sandbox.tool(request.name, request.arguments)
        assert isinstance(request, FinishRequest)
        messages = opening(request.messages, self.spec.agent.effective_builtin.system_prompt)
        reported = lowest_report(self.spec)

        async def finish(judges: list[str]) -> FinishReply:
            return await sandbox.finish(messages, request.truncated, reported, None, request.turns, judges)

        return await self.judges.finished(sandbox, finish, one.judgements.append, one.waits)
