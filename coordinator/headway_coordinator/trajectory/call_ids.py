"""Gives each tool call an id: the model's own if it wrote one, or one of the gateway. Pure.

Models of some families write an id with each call, and their templates write the same id with its result.
Kimi's ids are `functions.NAME:COUNT`, and Mistral's have nine letters or digits. The client then gets the
model's own id, so that the result in the training row has the id of its call. Other calls get an id of the
gateway.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from headway_coordinator.trajectory.calls import Call, Message, Parsed

SHORT: Final = 9
"""Number of characters of a call's id in Mistral's templates."""
_SHORT: Final = re.compile(rf"[A-Za-z0-9]{{{SHORT}}}")
_NUMBERED: Final = re.compile(r"functions\.[\w.-]{1,128}:\d{1,6}")
_AGAIN: Final = re.compile(rf"({_NUMBERED.pattern})-\d+-\d+")


def call_id(turn: int, index: int) -> str:
    """The gateway's id for a tool call. A replay of the episode gives the same id."""
    return f"call-{turn}-{index}"


def is_short(identity: str) -> bool:
    """Whether an id has the form that Mistral's models write."""
    return _SHORT.fullmatch(identity) is not None


def is_numbered(identity: str) -> bool:
    """Whether an id has the form that Kimi's models write."""
    return _NUMBERED.fullmatch(identity) is not None


def sampled_id(written: object) -> str | None:
    """The id that a model wrote with a call; None if no family writes ids in this form."""
    if not isinstance(written, str):
        return None
    found = written.strip()
    return found if is_short(found) or is_numbered(found) else None


def identified(parsed: Parsed, turn: int, history: Iterable[Message]) -> Parsed:
    """The turn with an id for each of its calls, different from all earlier ids.

    Kimi's models sometimes count wrongly and repeat an id. The repeated id gets a suffix, which `as_written`
    removes.

    Args:
        parsed: the parsed turn.
        turn: the turn's number in the episode.
        history: the messages before the turn.
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
    """The id as the model wrote it, without a suffix of `identified`."""
    found = _AGAIN.fullmatch(identity)
    return found[1] if found else identity
