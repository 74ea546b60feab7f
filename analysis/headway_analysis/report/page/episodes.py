"""An episode as the page shows it: turn by turn, and token by token if a tokenizer is available. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from headway_analysis.report import conversation
from headway_analysis.report.page.choice import Shown
from headway_api.records import EpisodeRecord, TrainingRow

Decode = Callable[[Sequence[int]], str]
"""Token ids -> their text, special tokens included."""

TEXT: Final = 2_000
"""Maximum characters of a message."""
TOKENS: Final = 1_200
"""Maximum tokens of an episode that are coloured."""
GIVEN: Final = 240
"""Maximum characters of a section of tokens that the model did not sample."""
SHADES: Final = 10
"""Shades of probability: 0 is unlikely, 9 is sure."""
WINDOW: Final = 6
"""Earlier tokens that are decoded with each token, because one character may consist of several tokens."""


@dataclass(frozen=True)
class Piece:
    """A sampled token of a training row, or a section of given tokens."""

    text: str
    shade: int | None = None
    """Probability of a sampled token, from 0 to `SHADES` - 1. None: the model did not sample the text."""
    logprob: float | None = None


@dataclass(frozen=True)
class Call:
    """A tool call and its answer."""

    name: str
    arguments: str
    answer: str | None
    failed: bool


@dataclass(frozen=True)
class Turn:
    """What the model said in one turn."""

    number: int
    text: str
    calls: tuple[Call, ...]
    tokens: int
    version: str
    end: str
    """Why sampling stopped."""


@dataclass(frozen=True)
class View:
    """One episode, with everything that the page shows of it."""

    name: str
    where: str
    """Its purpose, its step or candidate, and its row."""
    purpose: str
    outcome: str
    why: str
    reward: float | None
    score: float | None
    advantage: float | None
    fields: tuple[tuple[str, float], ...]
    error: str | None
    seconds: float
    begins: tuple[tuple[str, str], ...]
    """(role, text) of the messages before the first turn."""
    turns: tuple[Turn, ...]
    pieces: tuple[Piece, ...]
    cut: bool
    """Whether the training row has more than `TOKENS` tokens, so that some are not shown."""


def view(shown: Shown, decode: Decode | None) -> View:
    """An episode as the page shows it. Without `decode` its tokens are not shown."""
    episode = shown.episode
    whose = f"candidate {shown.candidate}" if shown.candidate else f"step {shown.step}"
    row = max(episode.rows, key=lambda each: each.action_tokens, default=None)
    pieces = () if decode is None or row is None else tuple(coloured(row, decode))
    return View(
        name=episode.episode_id,
        where=f"{shown.purpose.value}, {whose}, row {shown.row}",
        purpose=shown.purpose.value,
        outcome=episode.outcome.value,
        why=shown.why,
        reward=episode.reward,
        score=episode.score,
        advantage=shown.advantage,
        fields=tuple(sorted(episode.metrics.items()))[:32],
        error=shortened(episode.error, TEXT) if episode.error else None,
        seconds=episode.finished_at - episode.started_at,
        begins=tuple(
            (str(message.get("role", "")), shortened(conversation.text(message), TEXT))
            for message in conversation.first(episode)
        ),
        turns=tuple(_turns(episode)),
        pieces=pieces,
        cut=row is not None and len(row.tokens) > TOKENS,
    )


def _turns(episode: EpisodeRecord) -> Iterator[Turn]:
    for step in conversation.steps(episode):
        yield Turn(
            number=step.turn.index + 1,
            text="" if step.message is None else shortened(conversation.text(step.message), TEXT),
            calls=tuple(
                Call(
                    each.name,
                    shortened(_object(each.arguments), TEXT),
                    None if each.answer is None else shortened(each.answer, TEXT),
                    each.failed,
                )
                for each in step.calls
            ),
            tokens=step.turn.sampled_tokens,
            version=str(step.turn.policy_version),
            end=step.turn.finish_reason,
        )


def _object(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def shortened(text: str, limit: int) -> str:
    """The text. If it is longer than `limit`, its beginning and the number of characters left out."""
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit} more characters)"


def coloured(row: TrainingRow, decode: Decode) -> Iterator[Piece]:
    """A training row's first `TOKENS` tokens: sampled tokens one by one, given tokens in sections."""
    numbered = zip(range(min(len(row.tokens), TOKENS)), row.mask, strict=False)
    for sampled, places in groupby(numbered, key=lambda each: each[1]):
        section = [place for place, _ in places]
        tokens = row.tokens[section[0] : section[-1] + 1]
        if not sampled:
            yield Piece(shortened(decode(tokens), GIVEN))
            continue
        for at, place in enumerate(section):
            logprob = row.logprobs[place]
            shade = min(SHADES - 1, int(math.exp(min(0.0, logprob)) * SHADES))
            yield Piece(_last(tokens[max(0, at - WINDOW) : at + 1], decode), shade, logprob)


def _last(tokens: Sequence[int], decode: Decode) -> str:
    """The text that the last token adds to the text of the tokens before it."""
    before, whole = decode(tokens[:-1]), decode(tokens)
    return whole[len(before) :] if whole.startswith(before) else decode(tokens[-1:])
