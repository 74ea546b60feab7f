"""Finds the examples of answers in a prompt, and the names of their fields."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from headway_analysis.preflight.answers import LONGEST, objects_in

_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_QUOTED: Final = re.compile(r"[\"'`]([A-Za-z][\w -]{0,60})[\"'`]")
_BARE_KEY: Final = re.compile(r"([A-Za-z]\w{0,60})\s*:")
_PARTS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|[^\W\d_a-zA-Z]+")
_KEY_LINE: Final = re.compile(
    r"^\s*(?:[-*]\s*)?[\"'`]?([A-Za-z][\w ]{0,40}?)[\"'`]?\s*[:=]\s*\S", re.MULTILINE
)


@dataclass(frozen=True)
class Shown:
    """One example of an answer in a prompt."""

    text: str
    names: frozenset[str]
    """Names of the fields in the example."""


def examples_in(prompt: str) -> list[Shown]:
    """The examples of answers in a prompt.

    Examples are JSON objects, names in braces, and blocks of `key: value` lines, in this order. Only the
    first `LONGEST` characters are read.
    """
    prompt = prompt[:LONGEST]
    found = [Shown(str(each), frozenset(map(str, each))) for each in objects_in(prompt)]
    for match in _BRACES.finditer(prompt):
        inner = match.group(1)
        names = frozenset(_QUOTED.findall(inner)) | frozenset(_BARE_KEY.findall(inner))
        if names:
            found.append(Shown(match.group(), names))
    for block in re.split(r"\n\s*\n", prompt):
        names = frozenset(name.strip() for name in _KEY_LINE.findall(block))
        if len(names) > 1:
            found.append(Shown(block.strip(), names))
    return found


def of_label(prompt: str, fields: list[str]) -> Shown | None:
    """The example that has the most of a label's fields; None if no example has half of them."""
    wanted = set(fields)
    best = max(examples_in(prompt), key=lambda shown: len(shown.names & wanted), default=None)
    if best is None or len(best.names & wanted) < max(1, len(wanted) / 2):
        return None
    return best


def names_it(text: str, field: str) -> bool:
    """Whether a text names a field, either literally or as separate words."""
    words = "[_ -]?".join(map(re.escape, _PARTS.findall(field))) or re.escape(field)
    return re.search(rf"(?<![A-Za-z0-9]){words}(?![A-Za-z0-9])", text, re.IGNORECASE) is not None
