"""Finds a model's thoughts by the marks of its family."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

MARKS: Final = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
)
"""The marks before and after a thought."""
_EMPTY: Final = re.compile(
    "|".join(rf"{re.escape(opening)}\s{{0,4}}{re.escape(closing)}\s{{0,4}}" for opening, closing in MARKS)
)
TAIL: Final = 32
"""The number of tokens at a prompt's end that show whether it begins a thought."""


def opened(prompt: str) -> tuple[str, str] | None:
    """The marks of the unfinished thought at a prompt's end; None if there is none."""
    bare = prompt.rstrip()
    return next((marks for marks in MARKS if bare.endswith(marks[0])), None)


def split(said: str, prompt: str) -> tuple[str | None, str]:
    """A turn's thought, and the rest of it. An unfinished thought is the whole turn.

    Args:
        said: the turn as text.
        prompt: the end of the text before it.
    """
    marks = opened(prompt)
    begun = marks is not None
    bare = said.lstrip()
    if marks is None:
        marks = next((known for known in MARKS if bare.startswith(known[0])), None)
    if marks is None:
        return None, said
    # The model may open a thought again that the prompt has already begun.
    inside = bare.removeprefix(marks[0]) if bare.startswith(marks[0]) else said
    thought, closing, rest = inside.partition(marks[1])
    if not closing and begun and not inside:
        return None, ""
    return thought.strip() or None, rest


def empty(text: str) -> list[tuple[int, int]]:
    """The places of empty thoughts."""
    return [found.span() for found in _EMPTY.finditer(text)]


def without_empty(text: str) -> str:
    """A text without empty thoughts."""
    return _EMPTY.sub("", text)


def without(message: dict[str, Any]) -> dict[str, Any]:
    """A message without its thoughts. The field is removed, since a template would write None as a word."""
    return {key: value for key, value in message.items() if key != "reasoning_content"}


def dropped(said: str, fresh: str, history: Sequence[dict[str, Any]]) -> bool:
    """Whether `said` has a thought of `history` more often than a fresh rendering.

    Different blanks and an empty thought are no reason to leave the sampled tokens.
    """
    return any(said.count(thought) > fresh.count(thought) for thought in held(history))


def held(history: Sequence[dict[str, Any]]) -> list[str]:
    """The non-empty thoughts of a conversation."""
    told = [message.get("reasoning_content") for message in history]
    return [thought.strip() for thought in told if isinstance(thought, str) and thought.strip()]
