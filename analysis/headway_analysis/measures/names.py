"""Turns names of tools, tasks and reported numbers into names of metrics."""

from __future__ import annotations

import hashlib
import re
from typing import Final

NAME_LENGTH: Final = 64
HASH_LENGTH: Final = 8
_NO_WORD: Final = re.compile(r"[^A-Za-z0-9_]")


def word(name: str) -> str:
    """The name with `_` for every character but letters, digits and `_`. Two names may become equal."""
    return _NO_WORD.sub("_", name)


def tool(name: str) -> str:
    """A tool's name in metrics. It is cut, because a model may make up a name of any length.

    Tools whose names become equal count as one tool.
    """
    return word(name)[:NAME_LENGTH] or "_"


def apart(name: str) -> str:
    """A distinct name for each name: a name that must be changed or cut gets a short hash of itself.

    The result depends on the name alone, so a curve keeps its name when other names appear.
    """
    short = word(name)[:NAME_LENGTH]
    return name if name and short == name else hashed(short, name)


def hashed(short: str, name: str, limit: int = NAME_LENGTH) -> str:
    """A shortened name and a hash of the whole name, together at most `limit` characters."""
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:HASH_LENGTH]
    return f"{short[: limit - HASH_LENGTH - 1]}_{digest}"
