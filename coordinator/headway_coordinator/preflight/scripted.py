"""Plays episodes that need no model: a script's tool calls and its last message, in a sandbox of its own."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headway_analysis.preflight.evidence import Played, Script, ToolResult
from headway_api import logs
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator.agents.builtin import opening
from headway_coordinator.episode import check_reward, check_sizes
from headway_coordinator.faults import InfraFault
from headway_coordinator.gateway.core import call_id
from headway_coordinator.room import Room
from headway_coordinator.sandboxes import Broker, Sandbox

TRIES: Final = 2
"""Of a script whose sandbox was lost by no fault of the environment."""
ERROR_LENGTH: Final = 2000
Json = dict[str, Any]
_log = logging.getLogger(__name__)


@dataclass
class Player:
    """Plays scripts. What the environment says of them is the only thing that comes of it."""

    spec: RLTrainingJobSpec
    broker: Broker
    room: Room
    """Where each script takes a place."""
    lease: str
    """What the names of its leases begin with."""

    async def play(self, scripts: Sequence[Script]) -> list[Played]:
        """Play all of them, each after the one that it names; returns them in their order.

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
    ) -> Played:
        before = over.get((script.check, script.after)) if script.after is not None else None
        if before is not None and script.after != script.label:
            await before.wait()
        try:
            async with self.room:
                return await self._once_more(f"{self.lease}-{number}", script)
        finally:
            over[script.check, script.label].set()

    async def _once_more(self, lease: str, script: Script) -> Played:
        """A script, and again where its sandbox was lost by no fault of the environment."""
        for attempt in range(1, TRIES + 1):
            began = time.monotonic()
            try:
                return await self._played(f"{lease}-{attempt}", script)
            except InfraFault as fault:
                if fault.cause is None and attempt < TRIES:
                    logs.event(_log, "script-failed", level=logging.WARNING, error=str(fault))
                    continue
                return Played(script, error=str(fault)[:ERROR_LENGTH], seconds=time.monotonic() - began)
            except TimeoutError:
                text = f"no end within {self.spec.rollout.timeout_seconds:g} s"
                return Played(script, error=text, seconds=time.monotonic() - began)
        raise AssertionError("the last try returns")

    async def _played(self, lease: str, script: Script) -> Played:
        rollout, began = self.spec.rollout, time.monotonic()
        seconds = self.spec.environment.sandbox.deadline_seconds
        waiting = asyncio.timeout(rollout.timeout_seconds)
        leased = self.broker.lease(lease, seconds, rollout.timeout_seconds)
        async with waiting, leased as sandbox:
            waited = time.monotonic() - began
            waiting.reschedule(asyncio.get_running_loop().time() + rollout.timeout_seconds)
            return await self._in_sandbox(sandbox, script, began, waited)

    async def _in_sandbox(self, sandbox: Sandbox, script: Script, began: float, waited: float) -> Played:
        first = await sandbox.reset(dict(script.row), script.environment_seed)
        messages = opening(first.messages, self.spec.agent.effective_builtin.system_prompt)
        results: list[ToolResult] = []
        for number, call in enumerate(script.calls):
            messages.append(_asked(number, call.name, dict(call.arguments)))
            at = time.monotonic()
            reply = await sandbox.tool(call.name, dict(call.arguments))
            seconds = time.monotonic() - at
            results.append(ToolResult(call.name, call.arguments, reply.content, seconds, reply.done))
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": call_id(number, 0),
                    "content": reply.content,
                    "name": call.name,
                }
            )
            if reply.done:
                break
        ended = bool(results) and results[-1].done
        if script.answer is not None and not ended:
            messages.append({"role": "assistant", "content": script.answer})
        turns = sum(message.get("role") == "assistant" for message in messages)
        played = Played(
            script,
            messages=first.messages,
            tools=first.tools,
            results=results,
            waited=waited,
            seconds=time.monotonic() - began,
        )
        return await self._judged(sandbox, played, messages, turns)

    async def _judged(self, sandbox: Sandbox, played: Played, messages: list[Json], turns: int) -> Played:
        """What the environment makes of it. An agent that reports its own reward judges no script."""
        low, high = self.spec.reward.range
        agent = self.spec.agent.http
        reports = agent is not None and agent.reports_reward
        truncated = played.script.truncated
        reply = await sandbox.finish(messages, truncated, [low] if reports else None, None, turns)
        found: Json = {"score": reply.score, "metrics": reply.metrics}
        try:
            check_reward(reply, (low, high), turns)
            check_sizes(reply)
        except InfraFault as fault:
            found["error"] = str(fault)[:ERROR_LENGTH]
        else:
            found["reward"] = None if reports else reply.reward
        return Played(**(vars(played) | found))


def _asked(number: int, name: str, arguments: Json) -> Json:
    """A tool call as a model's message has it."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": call_id(number, 0), "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
