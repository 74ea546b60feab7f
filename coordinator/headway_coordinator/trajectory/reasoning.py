"""Finds a model's reasoning by the tags that its family writes around reasoning."""

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
"""The opening and closing tags of reasoning, of all families."""
_EMPTY: Final = re.compile(
    "|".join(rf"{re.escape(opening)}\s{{0,4}}{re.escape(closing)}\s{{0,4}}" for opening, closing in MARKS)
)
TAIL: Final = 32
"""The number of tokens at a prompt's end that show whether it begins reasoning."""


def opened(prompt: str) -> tuple[str, str] | None:
    """The tags of reasoning that a prompt begins with its last words; None if it begins none."""
    bare = prompt.rstrip()
    return next((marks for marks in MARKS if bare.endswith(marks[0])), None)


def split(text: str, prompt: str) -> tuple[str | None, str]:
    """A turn's reasoning, and the rest of the turn. Reasoning without a closing tag is the whole turn.

    Args:
        text: the turn's text.
        prompt: the end of the prompt's text.
    """
    marks = opened(prompt)
    begun = marks is not None
    bare = text.lstrip()
    if marks is None:
        marks = next((known for known in MARKS if bare.startswith(known[0])), None)
    if marks is None:
        return None, text
    # The model may repeat the opening tag that the prompt already ends with.
    inside = bare.removeprefix(marks[0]) if bare.startswith(marks[0]) else text
    reasoning, closing, rest = inside.partition(marks[1])
    if not closing and begun and not inside:
        return None, ""
    return reasoning.strip() or None, rest


def empty(text: str) -> list[tuple[int, int]]:
    """The start and end of each pair of reasoning tags with only white space between them."""
    return [found.span() for found in _EMPTY.finditer(text)]


def without_empty(text: str) -> str:
    """A text without pairs of reasoning tags that have only white space between them."""
    return _EMPTY.sub("", text)


def without(message: dict[str, Any]) -> dict[str, Any]:
    """A message without its reasoning. The field is removed, since a template would write None as a word."""
    return {key: value for key, value in message.items() if key != "reasoning_content"}


def dropped(rendered: str, fresh: str, history: Sequence[dict[str, Any]]) -> bool:
    """Whether the template drops reasoning of `history` that `rendered` still has.

    `fresh` is a new rendering of the same conversation. Only reasoning texts are compared: a difference in
    white space or empty reasoning is no reason to begin another training row.
    """
    return any(rendered.count(text) > fresh.count(text) for text in texts(history))


def texts(history: Sequence[dict[str, Any]]) -> list[str]:
    """The reasoning of each message that has any."""
    fields = [message.get("reasoning_content") for message in history]
    return [text.strip() for text in fields if isinstance(text, str) and text.strip()]
