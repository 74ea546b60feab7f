"""An episode turn by turn: the message of each turn, its tool calls and their answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway_analysis.measures.tries import TOOL_ERROR
from headway_api.records import EpisodeRecord, EpisodeSpan, Turn

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Call:
    """A tool call that could be read."""

    id: str
    name: str
    arguments: dict[str, Any]
    answer: str | None
    """The tool's answer. None if the tool was not called, because the episode had ended."""
    begun: float
    ended: float
    """`begun` and `ended` are Unix times. If the record has no times of tools, both are the turn's end."""

    @property
    def failed(self) -> bool:
        """Whether the tool answered with an error."""
        return self.answer is not None and self.answer.startswith(TOOL_ERROR)


@dataclass(frozen=True)
class Step:
    """One model call, and the tool calls that it led to."""

    turn: Turn
    at: int | None
    """Index of the turn's message among the episode's messages; None if the turn has none."""
    message: Message | None
    calls: tuple[Call, ...]
    begun: float
    ended: float
    """`begun` and `ended` are Unix times. If the record has no times of turns, all turns get equal time."""


def steps(episode: EpisodeRecord) -> list[Step]:
    """Every turn of an episode, in order."""
    places, times = iter(answer_places(episode)), _times(episode)
    found = []
    for (begun, ended), until, turn in zip(times, [*times[1:], None], episode.turns, strict=True):
        at = next(places, None) if turn.delivered else None
        message = None if at is None else episode.messages[at]
        tools = _tools(episode, ended, until[0] if until else episode.finished_at)
        calls = () if at is None else tuple(_calls(episode, at, ended, tools))
        found.append(Step(turn, at, message, calls, begun, ended))
    return found


def is_timed(episode: EpisodeRecord) -> bool:
    """Whether the record has the times of every turn."""
    return sum(span.kind == "turn" for span in episode.spans) == len(episode.turns)


def _times(episode: EpisodeRecord) -> list[tuple[float, float]]:
    """When each turn began and ended."""
    start = episode.started_at
    if is_timed(episode):
        turns = (span for span in episode.spans if span.kind == "turn")
        return [(start + span.began, start + span.ended) for span in turns]
    length = (episode.finished_at - start) / max(1, len(episode.turns))
    return [(start + n * length, start + (n + 1) * length) for n in range(len(episode.turns))]


def _tools(episode: EpisodeRecord, after: float, until: float) -> list[EpisodeSpan]:
    """Spans of the tools that were called between two moments, in Unix time; empty if turns have no times."""
    tools = [span for span in episode.spans if span.kind == "tool"] if is_timed(episode) else []
    return [span for span in tools if after <= episode.started_at + span.began < until]


def answer_places(episode: EpisodeRecord) -> list[int]:
    """Indices of the model's messages: the last assistant messages, one for each delivered turn."""
    places = [at for at, message in enumerate(episode.messages) if message.get("role") == "assistant"]
    taken = sum(turn.delivered for turn in episode.turns)
    return places[max(0, len(places) - taken) :]


def first(episode: EpisodeRecord) -> Sequence[Message]:
    """The environment's first messages: all before the model's first message."""
    places = answer_places(episode)
    return episode.messages[: places[0]] if places else episode.messages


def _calls(episode: EpisodeRecord, at: int, ended: float, tools: list[EpisodeSpan]) -> Iterator[Call]:
    """The calls of one message, with the answers that follow it.

    Args:
        at: index of the message.
        ended: Unix time at which its turn ended.
        tools: spans of the tools that were called after the message. An unreadable call has no span. Those
            that are found are removed from the list.
    """
    messages, start = episode.messages, episode.started_at
    answers = {
        message.get("tool_call_id"): text(message)
        for message in reversed(messages[at + 1 :])
        if message.get("role") == "tool"
    }
    for call in messages[at].get("tool_calls") or ():
        function, identity = call.get("function", {}), str(call.get("id", ""))
        answer, name = answers.get(call.get("id")), str(function.get("name", ""))
        span = next((each for each in tools if each.name == name), None) if answer is not None else None
        begun, done = ended, ended
        if span is not None:
            tools.remove(span)
            begun, done = start + span.began, start + span.ended
        yield Call(identity, name, arguments(function), answer, begun, done)


def arguments(function: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments as an object. If they are no JSON object, they are kept as its field `arguments`."""
    given = function.get("arguments", "{}")
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        found = given
    return found if isinstance(found, dict) else {"arguments": found}


def text(message: Message) -> str:
    """A message's words; a part that is not text is written as JSON."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(_part(part) for part in content)


def _part(part: object) -> str:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    return part if isinstance(part, str) else json.dumps(part)
