"""Cuts an answer to a size that a model can read, and says where and how much. Pure.

The notes of cuts are beside the answer and not inside it: a text from outside could imitate any mark.
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
"""Maximum cuts that are listed one by one."""
MAX_PATH: Final = 100
"""Maximum characters of a place; its end is the most informative part."""
RESERVED: Final = 4000
"""Characters of an answer reserved for notes of cuts."""
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
"""Pairs of limits, tried in turn until an answer fits: characters of a text, and entries of a list."""


class AnswerTooLongError(Exception):
    """No cut makes the answer fit."""


@dataclass
class Cuts:
    """Notes of what was left out, each with its place."""

    room: int
    """Characters that remain, about: an answer of millions of parts is not walked to its end."""
    listed: list[str] = field(default_factory=list)
    more: int = 0
    """Cuts beyond those that are listed."""

    def add(self, path: str, kept: int, of: int, what: str) -> None:
        """Note one more cut."""
        if len(self.listed) < MAX_LISTED:
            self.listed.append(f"{path[-MAX_PATH:] or 'answer'}: {kept} of {of} {what}")
        else:
            self.more += 1

    def take(self, characters: int) -> None:
        """Use up characters. Raise AnswerTooLongError if not enough remain."""
        self.room -= characters
        if self.room < 0:
            raise AnswerTooLongError

    def lines(self) -> list[str]:
        """The notes, as the answer lists them."""
        return [*self.listed, *([f"{self.more} more places were cut"] if self.more else [])]


def fitted(
    answer: Json, limit: int = MAX_CHARACTERS - RESERVED, text: int | None = None
) -> tuple[Json, list[str]]:
    """An answer that fits, and notes of its cuts.

    Args:
        answer: any JSON; floats that are not finite become words, and invalid characters `?`.
        limit: maximum characters of it as JSON.
        text: most characters of one text; None: as many as fit.
    Raises:
        AnswerTooLongError: it has too many parts.
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
    """Characters of a value as JSON."""
    return len(json.dumps(value, ensure_ascii=False))


def _cut(value: Any, path: str, text: int, entries: int, cuts: Cuts, depth: int) -> Any:
    cuts.take(min(len(value), text) if isinstance(value, str) else 1)
    if isinstance(value, str):
        if len(value) > text:
            cuts.add(path, text, len(value), "characters")
        return _sound(value[:text])
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
        return {_sound(str(key)[:text]): each for key, each in made}
    return [each for _, each in made]


def _parts(value: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
    return iter(value.items()) if isinstance(value, dict) else iter(enumerate(value))


def _below(path: str, key: object) -> str:
    """A place in an answer; a name from outside is kept short and on one line."""
    name = "".join(each if each.isprintable() else "?" for each in str(key)[:40])
    return f"{path}/{name}" if path else name


def _sound(text: str) -> str:
    """The text without halves of surrogate pairs, which UTF-8 cannot encode."""
    return text.encode(errors="replace").decode()


def first_that_fit(rows: list[Json], limit: int) -> list[Json]:
    """The first rows that have at most `limit` characters together; at least one row."""
    used, kept = 0, 0
    for row in rows:
        used += size(row)
        if used > limit and kept:
            break
        kept += 1
    return rows[:kept]


def thinned(points: list[Any], limit: int) -> list[Any]:
    """At most `limit` of some points, evenly spread, with the first and the last."""
    if len(points) <= limit:
        return points
    last = len(points) - 1
    chosen = sorted({round(number * last / (limit - 1)) for number in range(limit)}) if limit > 1 else [last]
    return [points[each] for each in chosen]
