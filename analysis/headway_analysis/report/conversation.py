"""An episode turn by turn: which message each turn said, its tool calls and their answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway_analysis.measures.tries import TOOL_ERROR
from headway_api.records import EpisodeRecord, Turn

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Call:
    """A tool call that could be read."""

    id: str
    name: str
    arguments: dict[str, Any]
    answer: str | None
    """None where the tool was not called: the episode ended before."""

    @property
    def failed(self) -> bool:
        """Whether the tool answered with an error."""
        return self.answer is not None and self.answer.startswith(TOOL_ERROR)


@dataclass(frozen=True)
class Step:
    """One model call, and the tool calls that it led to."""

    turn: Turn
    at: int | None
    """Place of what it said among the episode's messages. None where nothing of it is there."""
    message: Message | None
    calls: tuple[Call, ...]
    begun: float
    ended: float
    """Unix times. Records have no time of a turn: the turns of an episode share its time equally."""


def steps(episode: EpisodeRecord) -> list[Step]:
    """Every turn in its order."""
    places = iter(said(episode))
    length = (episode.finished_at - episode.started_at) / max(1, len(episode.turns))
    found = []
    for number, turn in enumerate(episode.turns):
        at = next(places, None) if turn.delivered else None
        message = None if at is None else episode.messages[at]
        begun = episode.started_at + number * length
        calls = () if at is None else tuple(_calls(episode.messages, at))
        found.append(Step(turn, at, message, calls, begun, begun + length))
    return found


def said(episode: EpisodeRecord) -> list[int]:
    """Places of the messages that the model said: the last ones, as many as turns were delivered."""
    places = [at for at, message in enumerate(episode.messages) if message.get("role") == "assistant"]
    taken = sum(turn.delivered for turn in episode.turns)
    return places[max(0, len(places) - taken) :]


def first(episode: EpisodeRecord) -> Sequence[Message]:
    """What the environment began with: all before the model's first message."""
    places = said(episode)
    return episode.messages[: places[0]] if places else episode.messages


def _calls(messages: Sequence[Message], at: int) -> Iterator[Call]:
    """The calls of one message, with the answers that follow it."""
    answers = {
        message.get("tool_call_id"): text(message)
        for message in reversed(messages[at + 1 :])
        if message.get("role") == "tool"
    }
    for call in messages[at].get("tool_calls") or ():
        function, identity = call.get("function", {}), str(call.get("id", ""))
        yield Call(identity, str(function.get("name", "")), arguments(function), answers.get(call.get("id")))


def arguments(function: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments as an object; what is none is kept under `arguments`."""
    given = function.get("arguments", "{}")
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        found = given
    return found if isinstance(found, dict) else {"arguments": found}


def text(message: Message) -> str:
    """A message's words; a part that is no text stands as JSON."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(_part(part) for part in content)


def _part(part: object) -> str:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    return part if isinstance(part, str) else json.dumps(part)
