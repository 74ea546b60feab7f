"""Rows that two splits share, and rows that one split has twice. Pure.

A model that is measured on rows it was trained on looks better than it is.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic_core import to_jsonable_python

SPACES: Final = re.compile(r"\s+")


class Pair(NamedTuple):
    """Two rows that are alike."""

    row: int
    """Number of the row, from 0."""
    other: int
    """Number of the first row that is like `row`: in the other split, or earlier in the same split."""


def normalized(text: str) -> str:
    """A text without the differences that copies often have: case, width, punctuation and white space.

    A text of punctuation alone stays as it is. Otherwise all such texts would be alike.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    words = "".join(" " if unicodedata.category(sign).startswith("P") else sign for sign in folded)
    return SPACES.sub(" ", words).strip() or text


def content(row: Mapping[str, Any]) -> str:
    """A row's columns and values as one text, which does not depend on the order of the columns."""
    return json.dumps(to_jsonable_python(row), sort_keys=True, ensure_ascii=False)


def shared(rows: Sequence[Hashable], others: Sequence[Hashable]) -> list[Pair]:
    """The rows that are also among `others`. Both lists hold one key a row; equal keys mean alike rows."""
    first: dict[Hashable, int] = {}
    for number, key in enumerate(others):
        first.setdefault(key, number)
    return [Pair(number, first[key]) for number, key in enumerate(rows) if key in first]


def repeated(rows: Sequence[Hashable]) -> list[Pair]:
    """The rows that repeat an earlier row of the same split. `rows` holds one key a row."""
    return [*_repeated(rows)]


def _repeated(rows: Sequence[Hashable]) -> Iterator[Pair]:
    first: dict[Hashable, int] = {}
    for number, key in enumerate(rows):
        if first.setdefault(key, number) != number:
            yield Pair(number, first[key])
