"""Finds out whether another parser could parse the tool calls that the job's own parser could not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, get_args

from headway_analysis.preflight.evidence import Sampled
from headway_api.exits import JobError
from headway_api.records import EpisodeRecord, TrainingRow, Turn
from headway_api.spec.agent import ToolCallParser
from headway_coordinator.trajectory.render import Renderer, choose, load, model_type

MAX_TURNS: Final = 200
"""The most turns that are parsed again."""


def would_read(model: Path, own: str, sampled: Sequence[Sampled]) -> dict[str, int]:
    """Parser -> number of calls that it can parse, among those that `own` could not.

    Blocking: run it in a thread.

    Args:
        model: folder with the model's configuration and tokenizer.
        own: the job's `toolCallParser`.
        sampled: the baseline episodes.
    """
    turns = [*islice(((one, *unread) for one in sampled for unread in _unread(one.record)), MAX_TURNS)]
    found: dict[str, int] = {}
    if not turns:
        return found
    tokenizer, family = load(model, own)[1], model_type(model)
    for name in get_args(ToolCallParser):
        renderer = None if name == own else _renderer(tokenizer, family, name)
        if renderer is None:
            continue
        read = sum(
            turn.malformed_tool_calls
            for one, turn, ids, prompt in turns
            if _reads(renderer, one, ids, prompt)
        )
        found |= {name: read} if read else {}
    return found


def _renderer(tokenizer: Any, family: str, parser: str) -> Renderer | None:
    try:
        return choose(tokenizer, family, parser)
    except JobError:  # this parser does not fit the model
        return None


def _unread(episode: EpisodeRecord) -> Iterator[tuple[Turn, list[int], list[int]]]:
    """Each turn with a malformed call, with its sampled tokens and the tokens before them."""
    turns = {turn.index: turn for turn in episode.turns if turn.malformed_tool_calls}
    for row in episode.rows:
        for number, start, end in _spans(row):
            if number in turns:
                yield turns.pop(number), row.tokens[start:end], row.tokens[:start]


def _spans(row: TrainingRow) -> Iterator[tuple[int, int, int]]:
    if row.turns:
        yield from ((span.turn, span.start, span.end) for span in row.turns)
        return
    places = [place for place, trained in enumerate(row.mask) if trained]
    if places:
        yield 0, places[0], places[-1] + 1


def _reads(renderer: Renderer, one: Sampled, sampled: list[int], prompt: list[int]) -> bool:
    calls = renderer.parse(sampled, prompt, [dict(tool) for tool in one.tools]).calls
    return bool(calls) and all(call.problem is None for call in calls)
