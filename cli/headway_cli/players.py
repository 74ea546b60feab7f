"""Players that need no model: the environment's oracle, a novice, and a player of random calls."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from headway_analysis.preflight.answers import parsed
from headway_analysis.preflight.arguments import random_call
from headway_analysis.preflight.evidence import Call
from headway_analysis.preflight.mutants import altered
from headway_analysis.preflight.playing import EpisodeCutError, Turns
from headway_api.sandbox_api import ResetReply
from headway_cli.tiny.task import TinyModelError, agent_of
from headway_sandbox.testing import Seen
from headway_sandbox.testing.playing import Model

CALLS: Final = 3
"""Maximum calls of the random player."""
RIGHT, ANSWER, CALLED = 0.5, 0.7, 0.85
"""Thresholds of a random number from 0 to 1. Below RIGHT the novice plays like the oracle. Below ANSWER it
alters the oracle's answer, and below CALLED the oracle's calls. Above that, it plays at random."""

Player = Callable[[Seen], Turns]


def expert(oracle: Model, faults: list[str]) -> Player:
    """A player that plays like the oracle.

    If the oracle raises an error, or yields or returns something invalid, the episode is cut off. `faults`
    gets the reason.
    """

    def player(seen: Seen) -> Turns:
        first = ResetReply(messages=[*map(dict, seen.messages)], tools=[*map(dict, seen.tools)])
        try:
            return (yield from agent_of(oracle, dict(seen.row), seen.random)(first))
        except TinyModelError as fault:
            faults.append(str(fault))
            raise EpisodeCutError from fault

    return player


def novice(oracle: Model) -> Player:
    """A player that is right half of the time. Else it alters an answer or calls, or plays at random."""
    right = expert(oracle, [])  # ignore its faults: an oracle may well fail after an altered call

    def player(seen: Seen) -> Turns:
        kind = seen.random.random()
        if kind < RIGHT:
            return (yield from right(seen))
        if kind < ANSWER:
            answer = yield from right(seen)
            return None if answer is None else with_altered_field(answer, seen.random)
        if kind < CALLED:
            return (yield from _with_altered_calls(right(seen), seen.random))
        return (yield from random_player(seen))

    return player


def random_player(seen: Seen) -> Turns:
    """A player that calls tools at random, and answers with the last text that it received."""
    answer = str(seen.messages[-1].get("content") or "") if seen.messages else ""
    for _ in range(seen.random.randint(0, CALLS) if seen.tools else 0):
        result = yield random_call(seen.random.choice(list(seen.tools)), seen.random)
        answer = result.content
    return answer


def with_altered_field(answer: str, drawn: random.Random) -> str:
    """The answer with one of its fields, drawn at random, altered."""
    found = parsed(answer)
    name = drawn.choice([key for key, _ in found.fields])
    fields = tuple((key, altered(value) if key == name else value) for key, value in found.fields)
    return found.with_fields(fields).text


def _with_altered_calls(turns: Turns, drawn: random.Random) -> Turns:
    """A player's turns, with some arguments of its calls altered."""
    try:
        call = next(turns)
        while True:
            call = turns.send((yield _altered(call, drawn)))
    except StopIteration as end:
        answer: str | None = end.value
        return answer


def _altered(call: Call, drawn: random.Random) -> Call:
    if not call.arguments or drawn.random() < 0.5:
        return call
    name = drawn.choice(sorted(call.arguments))
    return Call(call.name, {**call.arguments, name: altered(call.arguments[name])})
