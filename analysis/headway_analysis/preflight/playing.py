"""Plays a script: a generator that yields the requests to the sandbox in their order, and returns the result.

The generator itself sends nothing. So a coordinator can play a script in a sandbox that it leases, and a test
in a local process, with the same result. The caller sends each request to the sandbox
(`headway_api.sandbox_api`), and sends the reply back into the generator. If there is no reply, it throws
`NoReplyError`:

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
"""An agent's episode: it yields calls, receives their results, and returns its last text, or None."""
Agent = Callable[[ResetReply], Turns]
"""Begins an episode from the reply to the environment's reset."""


class NoReplyError(Exception):
    """A request had no reply. The message comes from the sandbox or the environment.

    Args:
        cause: as `PlayedScript.cause`.
    """

    def __init__(self, message: str, cause: str | None = None) -> None:
        super().__init__(message)
        self.cause = cause


class EpisodeCutError(Exception):
    """An agent raises this when it is out of turns, tokens or context. `answer`: its unfinished answer."""

    def __init__(self, answer: str | None = None) -> None:
        super().__init__("the episode is truncated")
        self.answer = answer


def each(calls: Iterable[Call]) -> Generator[Call, ToolResult, list[ToolResult]]:
    """Makes these calls in their order, regardless of results: `results = yield from each(calls)`."""
    results = []
    for call in calls:
        result = yield call
        results.append(result)
    return results


def of_script(script: Script) -> Agent:
    """An agent that follows a script, regardless of what the tools answer."""

    def agent(first: ResetReply) -> Turns:
        yield from each(script.calls)
        return script.answer

    return agent


def played(script: Script, clock: Callable[[], float], agent: Agent | None = None) -> Play:
    """Plays a script: reset, tool calls, finish.

    Args:
        script: the row and seed, and the calls and answer unless `agent` is given.
        clock: gives the time in seconds.
        agent: decides on calls and answer instead of the script.
    """
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
    """Execute the agent's calls until the agent or a tool ends the episode. Returns the agent's last text."""
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
    """The messages that reward and score see: one tool call a turn, and at the end the agent's answer."""
    messages = [dict(message) for message in first]
    for number, result in enumerate(results):
        function = {"name": result.name, "arguments": json.dumps(dict(result.arguments))}
        called = {"id": f"call_{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [called]})
        messages.append({"role": "tool", "tool_call_id": called["id"], "content": result.content})
    if answer is not None:
        messages.append({"role": "assistant", "content": answer})
    return messages
