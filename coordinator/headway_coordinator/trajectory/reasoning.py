"""Finds a model's reasoning by the marks of its family."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

MARKS: Final = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
)
"""The marks before and after reasoning."""
_EMPTY: Final = re.compile(
    "|".join(rf"{re.escape(opening)}\s{{0,4}}{re.escape(closing)}\s{{0,4}}" for opening, closing in MARKS)
)
TAIL: Final = 32
"""The number of tokens at a prompt's end that show whether it begins reasoning."""


def opened(prompt: str) -> tuple[str, str] | None:
    """The marks of the unfinished reasoning at a prompt's end; None if there is none."""
    bare = prompt.rstrip()
    return next((marks for marks in MARKS if bare.endswith(marks[0])), None)


def split(text: str, prompt: str) -> tuple[str | None, str]:
    """A turn's reasoning, and the rest of it. Unfinished reasoning is the whole turn.

    Args:
        text: the turn.
        prompt: the end of the text before it.
    """
    marks = opened(prompt)
    begun = marks is not None
    bare = text.lstrip()
    if marks is None:
        marks = next((known for known in MARKS if bare.startswith(known[0])), None)
    if marks is None:
        return None, text
    # The model may open reasoning again that the prompt has already begun.
    inside = bare.removeprefix(marks[0]) if bare.startswith(marks[0]) else text
    reasoning, closing, rest = inside.partition(marks[1])
    if not closing and begun and not inside:
        return None, ""
    return reasoning.strip() or None, rest


def empty(text: str) -> list[tuple[int, int]]:
    """The places of empty reasoning."""
    return [found.span() for found in _EMPTY.finditer(text)]


def without_empty(text: str) -> str:
    """A text without empty reasoning."""
    return _EMPTY.sub("", text)


def without(message: dict[str, Any]) -> dict[str, Any]:
    """A message without its reasoning. The field is removed, since a template would write None as a word."""
    return {key: value for key, value in message.items() if key != "reasoning_content"}


def dropped(rendered: str, fresh: str, history: Sequence[dict[str, Any]]) -> bool:
    """Whether `rendered` has reasoning of `history` more often than a fresh rendering.

    Different blanks and empty reasoning are not a reason to leave the sampled tokens.
    """
    return any(rendered.count(text) > fresh.count(text) for text in texts(history))


def texts(history: Sequence[dict[str, Any]]) -> list[str]:
    """The reasoning of each message of a conversation that has any."""
    fields = [message.get("reasoning_content") for message in history]
    return [text.strip() for text in fields if isinstance(text, str) and text.strip()]
