"""Finds why a turn forks: how its history differs from the most similar recorded conversation. Pure.

This runs only for turns that fork, so it costs other turns nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headway_api.records import Drift, ForkReason
from headway_coordinator.gateway.conversations import RecordedTurn
from headway_coordinator.trajectory.calls import Message, Tool

ROLE_LENGTH = 32


@dataclass(frozen=True)
class ForkCause:
    """Why one turn forked."""

    reason: ForkReason
    message: int | None = None
    """The position of the first message of the request that differs, from 0."""


@dataclass(frozen=True)
class _Near:
    """A recorded conversation, and how many of its first messages the request repeats."""

    turn: RecordedTurn
    alike: int


def reason(
    recorded: Sequence[RecordedTurn],
    meanings: Sequence[object],
    tools: Sequence[Tool],
    unseen: Collection[int] = (),
) -> ForkCause:
    """Why a request continues no sampled tokens, or continues a turn that another turn already continues.

    Args:
        recorded: the episode's turns, at least one.
        meanings: the meanings of the request's messages; see `conversations.meaning`.
        tools: the request's tools.
        unseen: nodes that never reached the agent.
    """
    near = _nearest(recorded, meanings, unseen, tools)
    nearest = _nearest(recorded, meanings, unseen)
    if near is None or (nearest is not None and nearest.alike > near.alike):
        return ForkCause("tools")
    at, known = near.alike, _meanings(_last(near.turn))
    if at == len(meanings):
        return ForkCause("again")
    if at == len(known):
        return ForkCause("template", at - 1)
    return ForkCause(_differs(known[at:], meanings[at:]), at)


def rendered(before: RecordedTurn, cut_off: bool) -> ForkCause:
    """Why the rendered prompt differs from a recorded turn although the request repeats that turn."""
    last = before.length - 1
    if cut_off:
        return ForkCause("cut_off", last)
    reasoned = any(message.get("reasoning_content") for message in before.messages)
    return ForkCause("thought" if reasoned else "template", last)


def counted(
    drifts: Mapping[ForkReason, Drift], found: ForkCause, turn: int, messages: Sequence[Message]
) -> Drift:
    """An episode's count of forks for one reason, increased by this turn.

    The first turn with the reason also sets the details: the turn, the message and its role.
    """
    if (known := drifts.get(found.reason)) is not None:
        return known.model_copy(update={"count": known.count + 1})
    role = None if found.message is None else str(messages[found.message].get("role", ""))[:ROLE_LENGTH]
    return Drift(reason=found.reason, count=1, turn=turn, message=found.message, role=role)


def _nearest(
    recorded: Sequence[RecordedTurn],
    meanings: Sequence[object],
    unseen: Collection[int],
    tools: Sequence[Tool] | None = None,
) -> _Near | None:
    """The recorded conversation that shares the most leading messages with a request.

    Among equals, a conversation with a further message is preferred, then one that reached the agent, then
    the newest. With `tools`, only conversations with these tools count.
    """
    best: tuple[int, bool, bool, int] | None = None
    found: _Near | None = None
    for near in _reached(recorded, meanings):
        turn = near.turn
        if tools is not None and turn.tools != tools:
            continue
        mark = (near.alike, near.alike < turn.length, turn.node not in unseen, turn.node)
        if best is None or mark > best:
            best, found = mark, near
    return found


def _reached(recorded: Sequence[RecordedTurn], meanings: Sequence[object]) -> Iterator[_Near]:
    reached = [turn for turn in recorded if turn.before is None]
    while reached:
        turn = reached.pop()
        start = turn.length - len(turn.new)
        pairs = zip(turn.meanings, meanings[start:], strict=False)
        same = next((n for n, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
        alike = start + (min(len(turn.new), len(meanings) - start) if same is None else same)
        yield _Near(turn, alike)
        if alike == turn.length:
            reached += turn.after


def _last(turn: RecordedTurn) -> RecordedTurn:
    """The last turn of the newest conversation that continues this one."""
    while turn.after:
        turn = turn.after[-1]
    return turn


def _meanings(turn: RecordedTurn) -> list[object]:
    parts, at = [turn.meanings], turn
    while at.before is not None:
        at = at.before
        parts.append(at.meanings)
    return [meaning for part in reversed(parts) for meaning in part]


def _differs(ours: Sequence[object], theirs: Sequence[object]) -> ForkReason:
    """How two histories differ. Their first messages must have different meanings."""
    (was_role, was, was_calls, was_id), (role, text, calls, call_id) = _parts(ours[0]), _parts(theirs[0])
    if was_role == role == "system":
        return "system"
    if theirs[0] in ours[1:]:
        return "dropped"
    if ours[0] in theirs[1:]:
        return "inserted"
    if was_role != role:
        return "role"
    if was_calls != calls:
        return "arguments" if _named(was_calls) == _named(calls) else "calls"
    if was_id != call_id:
        return "call_id"
    return "whitespace" if str(was).split() == str(text).split() else "content"


def _named(calls: list[tuple[str, object]]) -> list[str]:
    return [name for name, _ in calls]


def _parts(meaning: object) -> tuple[object, object, list[tuple[str, object]], object]:
    """The role, text, calls and id of the answered call, from the result of `conversations.meaning`."""
    assert isinstance(meaning, tuple)
    role, text, calls, call_id = meaning
    return role, text, calls, call_id
