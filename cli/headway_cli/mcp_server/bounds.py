"""Cuts an answer to a size that a model can read, and says where and how much. Pure.

The notes about cuts are in a list beside the answer. A mark inside a text would not be reliable, because text
from outside could imitate it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from headway_api.document import Json

MAX_CHARACTERS: Final = 40_000
"""Maximum characters of an answer as JSON: about 10,000 tokens."""
MAX_LISTED: Final = 20
"""Maximum cuts that are listed one by one; the rest is only counted."""
MAX_PATH: Final = 100
"""Maximum characters of the path of a cut. The end of a longer path is kept, as the most informative part."""
RESERVED: Final = 4000
"""Characters of an answer that are reserved for the notes about cuts."""
MAX_DEPTH: Final = 24
"""Maximum levels of lists and objects."""
LADDER: Final = (
    (20_000, 2000),
    (8000, 500),
    (4000, 200),
    (2000, 100),
    (1000, 50),
    (500, 30),
    (200, 20),
    (100, 10),
    (50, 5),
)
"""Limits of a text's characters and a list's entries. The pairs are tried in turn until an answer fits."""


class AnswerTooLongError(Exception):
    """The answer does not fit even with the smallest limits."""


@dataclass
class Cuts:
    """Notes about what was left out of an answer, each with its path."""

    room: int
    """About how many characters remain. A walk over an answer of millions of parts stops when none remain."""
    listed: list[str] = field(default_factory=list)
    more: int = 0
    """Cuts beyond those that are listed."""

    def add(self, path: str, kept: int, of: int, what: str) -> None:
        """Record one more cut: at `path`, `kept` of `of` entries or characters remain."""
        if len(self.listed) < MAX_LISTED:
            self.listed.append(f"{path[-MAX_PATH:] or 'answer'}: {kept} of {of} {what}")
        else:
            self.more += 1

    def take(self, characters: int) -> None:
        """Subtract characters from those that remain. Raise AnswerTooLongError if not enough remain."""
        self.room -= characters
        if self.room < 0:
            raise AnswerTooLongError

    def lines(self) -> list[str]:
        """The notes, as the answer lists them."""
        return [*self.listed, *([f"{self.more} more places were cut"] if self.more else [])]


def fitted(
    answer: Json, limit: int = MAX_CHARACTERS - RESERVED, text: int | None = None
) -> tuple[Json, list[str]]:
    """Cut an answer so that it fits. Return it with notes about the cuts.

    Args:
        answer: any JSON. In the result, floats that are not finite become text such as `nan`, and characters
            that UTF-8 cannot encode become `?`.
        limit: maximum characters of the result as JSON.
        text: maximum characters of one text; None for as many as fit.

    Raises:
        AnswerTooLongError: the answer has too many parts.
    """
    for characters, entries in LADDER:
        cuts = Cuts(limit)
        max_text = characters if text is None else min(text, characters)
        try:
            made: Json = _cut(answer, "", max_text, entries, cuts, 0)
        except AnswerTooLongError:
            continue
        if size(made) <= limit:
            return made, cuts.lines()
    raise AnswerTooLongError


def size(value: object) -> int:
    """Number of characters of a value as JSON."""
    return len(json.dumps(value, ensure_ascii=False))


def _cut(value: Any, path: str, text: int, entries: int, cuts: Cuts, depth: int) -> Any:
    cuts.take(min(len(value), text) if isinstance(value, str) else 1)
    if isinstance(value, str):
        if len(value) > text:
            cuts.add(path, text, len(value), "characters")
        return _encodable(value[:text])
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if not isinstance(value, dict | list | tuple):
        return value
    if depth >= MAX_DEPTH:
        cuts.add(path, 0, len(value), "entries")
        return None
    if len(value) > entries:
        cuts.add(path, entries, len(value), "entries")
    parts = islice(_parts(value), entries)
    made = [(key, _cut(each, _below(path, key), text, entries, cuts, depth + 1)) for key, each in parts]
    if isinstance(value, dict):
        return {_encodable(str(key)[:text]): each for key, each in made}
    return [each for _, each in made]


def _parts(value: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
    return iter(value.items()) if isinstance(value, dict) else iter(enumerate(value))


def _below(path: str, key: object) -> str:
    """The path of an entry of the object or list at `path`. A long key is cut, and kept on one line."""
    name = "".join(each if each.isprintable() else "?" for each in str(key)[:40])
    return f"{path}/{name}" if path else name


def _encodable(text: str) -> str:
    """The text without halves of surrogate pairs, which UTF-8 cannot encode."""
    return text.encode(errors="replace").decode()


def first_that_fit(rows: list[Json], limit: int) -> list[Json]:
    """As many of the first rows as have at most `limit` characters together as JSON, and at least one row."""
    used, kept = 0, 0
    for row in rows:
        used += size(row)
        if used > limit and kept:
            break
        kept += 1
    return rows[:kept]


def thinned(points: list[Any], limit: int) -> list[Any]:
    """At most `limit` of the points, evenly spread, including the first and the last."""
    if len(points) <= limit:
        return points
    last = len(points) - 1
    chosen = sorted({round(number * last / (limit - 1)) for number in range(limit)}) if limit > 1 else [last]
    return [points[each] for each in chosen]
