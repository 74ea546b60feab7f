"""Turns names that others chose into names of metrics."""

from __future__ import annotations

import hashlib
import re
from typing import Final

NAME_LENGTH: Final = 64
HASH_LENGTH: Final = 8
_NO_WORD: Final = re.compile(r"[^A-Za-z0-9_]")


def word(name: str) -> str:
    """Letters, digits and underscores. Two names may become one."""
    return _NO_WORD.sub("_", name)


def tool(name: str) -> str:
    """A tool's name, which a model may make up of any length. Tools whose names become one count as one."""
    return word(name)[:NAME_LENGTH] or "_"


def apart(name: str) -> str:
    """A distinct name for each name: one that must be changed or cut gets a short hash of itself.

    A function of the name alone, so that a curve keeps its name when another name joins it.
    """
    short = word(name)[:NAME_LENGTH]
    return name if name and short == name else hashed(short, name)


def hashed(short: str, name: str, limit: int = NAME_LENGTH) -> str:
    """A shortened name and a hash of the whole name, together at most `limit` characters."""
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:HASH_LENGTH]
    return f"{short[: limit - HASH_LENGTH - 1]}_{digest}"
