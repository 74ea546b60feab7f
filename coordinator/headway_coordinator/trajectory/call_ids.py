"""The ids of tool calls. Pure.

Some families write an id with each call, and their templates write the same id with its result: Kimi
`functions.NAME:COUNT`, Mistral nine letters. The client then gets the model's own id, so that the result in
the row has the id of its call. Other calls get an id of the gateway.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from headway_coordinator.trajectory.calls import Call, Message, Parsed

SHORT: Final = 9
"""Letters of a call's id in Mistral's templates."""
_SHORT: Final = re.compile(rf"[A-Za-z0-9]{{{SHORT}}}")
_NUMBERED: Final = re.compile(r"functions\.[\w.-]{1,128}:\d{1,6}")
_AGAIN: Final = re.compile(rf"({_NUMBERED.pattern})-\d+-\d+")


def call_id(turn: int, index: int) -> str:
    """The gateway's id of a turn's tool call: the same at every replay."""
    return f"call-{turn}-{index}"


def is_short(identity: str) -> bool:
    """Whether an id has the form of Mistral's."""
    return _SHORT.fullmatch(identity) is not None


def is_numbered(identity: str) -> bool:
    """Whether an id has the form of Kimi's."""
    return _NUMBERED.fullmatch(identity) is not None


def sampled_id(written: object) -> str | None:
    """An id that a model wrote with a call; None if it is in no family's form."""
    if not isinstance(written, str):
        return None
    found = written.strip()
    return found if is_short(found) or is_numbered(found) else None


def identified(parsed: Parsed, turn: int, history: Iterable[Message]) -> Parsed:
    """The turn with an id for each of its calls, different from all ids before it.

    Models count wrongly, so an id of Kimi's may come twice. The later one gets a suffix, which `as_written`
    removes.

    Args:
        parsed: the turn.
        turn: its number in the episode.
        history: the messages before it.
    """
    if all(call.id is None for call in parsed.calls):
        taken = set[str]()
    else:
        taken = {str(call.get("id")) for message in history for call in message.get("tool_calls") or ()}
    calls: list[Call] = []
    for index, call in enumerate(parsed.calls):
        identity = call.id or call_id(turn, index)
        if identity in taken:
            identity = f"{identity}-{turn}-{index}" if is_numbered(identity) else call_id(turn, index)
        taken.add(identity)
        calls.append(replace(call, id=identity))
    return replace(parsed, calls=calls)


def as_written(identity: str) -> str:
    """The id as the model wrote it."""
    found = _AGAIN.fullmatch(identity)
    return found[1] if found else identity
