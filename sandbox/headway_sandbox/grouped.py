"""Parses the finished episodes of a group, sent to one sandbox that rewards them together."""

from __future__ import annotations

from headway_sandbox import bounds
from headway_sandbox.environment import Call, Reward, Transcript
from headway_sandbox.http import HttpError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

FAILED = "error: "
"""Prefix of the result of a failed tool call."""


def grouped(episodes: object, row: Mapping[str, Any]) -> list[Transcript]:
    """The transcripts of a request's `episodes`; raises HttpError if they are not a list of episodes."""
    if not isinstance(episodes, list) or not episodes:
        raise HttpError(400, "MalformedRequest", "a group takes episodes (a list of them)")
    try:
        return [transcript(each, row) for each in episodes]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        message = f"an episode of a group is not valid: {type(error).__name__}: {error}"
        raise HttpError(400, "MalformedRequest", message) from error


def transcript(episode: Mapping[str, Any], row: Mapping[str, Any]) -> Transcript:
    """The transcript of one episode."""
    messages, truncated, turns = list(episode["messages"]), bool(episode["truncated"]), int(episode["turns"])
    alone = Reward(float(episode["reward"]), episode.get("metrics"))
    return Transcript(messages, tuple(calls(messages)), truncated, turns=turns, row=row, reward=alone)


def calls(messages: list[Mapping[str, Any]]) -> Iterator[Call]:
    """The answered tool calls of a conversation. The pod that recorded the calls themselves is gone."""
    shown = {message.get("tool_call_id"): message for message in messages if message.get("role") == "tool"}
    for message in messages:
        for call in message.get("tool_calls") or ():
            answer = shown.get(call.get("id"))
            if answer is None:
                continue
            content, asked = str(answer.get("content") or ""), call["function"]
            arguments = bounds.parsed(asked["arguments"].encode())
            yield Call(asked["name"], arguments, content, content.startswith(FAILED))
