"""Plays a script: yields the requests to its sandbox in their order, and returns the result.

It sends nothing itself. A coordinator plays a script over its broker's leases, and a test over a process of
its own, with the same result. The caller sends each request to the sandbox (`headway_api.sandbox_api`) and
its reply back into the generator, or throws `NoReplyError` if there is none:

    play = played(script, time.monotonic)
    request = next(play)
    while True:                      # StopIteration.value is the PlayedScript
        request = play.send(reply)   # or play.throw(Failed("..."))
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from headway_analysis.preflight.evidence import Call, PlayedScript, Script, ToolResult
from headway_api.document import JsonView
from headway_api.sandbox_api import FinishReply, FinishRequest, ResetReply, ResetRequest, ToolCall, ToolReply

Request = ResetRequest | ToolCall | FinishRequest
Reply = ResetReply | ToolReply | FinishReply
Play = Generator[Request, Reply, PlayedScript]
Turns = Generator[Call, ToolResult, "str | None"]
"""What an agent does: it yields calls, is sent their results, and returns the text it ends with, or None."""
Agent = Callable[[ResetReply], Turns]
"""Begins with what the environment's reset said."""


class NoReplyError(Exception):
    """A request had no reply. The message is in the sandbox's or the environment's own words.

    Args:
        cause: as `PlayedScript.cause`.
    """

    def __init__(self, message: str, cause: str | None = None) -> None:
        super().__init__(message)
        self.cause = cause


class EpisodeCutError(Exception):
    """Raised by an agent that is out of turns, tokens or context. `answer`: its unfinished answer."""

    def __init__(self, answer: str | None = None) -> None:
        super().__init__("the episode is truncated")
        self.answer = answer


def each(calls: Iterable[Call]) -> Generator[Call, ToolResult, list[ToolResult]]:
    """These calls one after another, whatever their results: `results = yield from each(calls)`."""
    results = []
    for call in calls:
        result = yield call
        results.append(result)
    return results


def of_script(script: Script) -> Agent:
    """The agent that does what a script says, whatever the tools answer."""

    def agent(first: ResetReply) -> Turns:
        yield from each(script.calls)
        return script.answer

    return agent


def played(script: Script, clock: Callable[[], float], agent: Agent | None = None) -> Play:
    """Reset, calls, finish. `agent` decides on calls and answer in the script's place."""
    began = clock()
    so_far = PlayedScript(script)
    results: list[ToolResult] = []
    try:
        first = yield ResetRequest(row=dict(script.row), seed=script.environment_seed)
        assert isinstance(first, ResetReply)
        so_far = dataclasses.replace(so_far, messages=first.messages, tools=first.tools)
        turns = (agent or of_script(script))(first)
        truncated = script.truncated
        try:
            answer = yield from _called(turns, results, clock)
        except EpisodeCutError as cut:
            answer, truncated = cut.answer, True
        so_far = dataclasses.replace(
            so_far,
            script=dataclasses.replace(script, answer=answer, truncated=truncated),
            results=tuple(results),
        )
        messages = conversation(first.messages, results, answer)
        asked = len(results) + (answer is not None)
        judged = yield FinishRequest(messages=messages, truncated=truncated, turns=asked)
        assert isinstance(judged, FinishReply)
    except NoReplyError as failure:
        return dataclasses.replace(
            so_far,
            results=tuple(results),
            error=str(failure),
            cause=failure.cause,
            seconds=clock() - began,
        )
    return dataclasses.replace(
        so_far,
        reward=judged.reward,
        score=judged.score,
        metrics=judged.metrics,
        seconds=clock() - began,
    )


def _called(
    turns: Turns, results: list[ToolResult], clock: Callable[[], float]
) -> Generator[Request, Reply, str | None]:
    """Carry out the agent's calls, until it ends or a tool ends the episode; the text it ends with."""
    try:
        call = next(turns)
        while True:
            began = clock()
            reply = yield ToolCall(name=call.name, arguments=dict(call.arguments))
            assert isinstance(reply, ToolReply)
            results.append(ToolResult(call.name, call.arguments, reply.content, clock() - began, reply.done))
            if reply.done:
                return None
            call = turns.send(results[-1])
    except StopIteration as end:
        answer: str | None = end.value
        return answer


def conversation(
    first: Sequence[JsonView], results: Sequence[ToolResult], answer: str | None
) -> list[dict[str, Any]]:
    """The messages that a judge sees: one call a turn, and last what the agent said."""
    messages = [dict(message) for message in first]
    for number, result in enumerate(results):
        function = {"name": result.name, "arguments": json.dumps(dict(result.arguments))}
        called = {"id": f"call_{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [called]})
        messages.append({"role": "tool", "tool_call_id": called["id"], "content": result.content})
    if answer is not None:
        messages.append({"role": "assistant", "content": answer})
    return messages
