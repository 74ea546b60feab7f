"""Suggests existing names that are similar to a name that does not exist. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

MAX_SUGGESTIONS: Final = 3
"""Maximum names that are suggested."""
ALIKE: Final = 0.5
"""Minimum similarity, from 0 to 1, of a name that is suggested."""


def near(name: str, known: Iterable[str]) -> list[str]:
    """The most similar of the known names, the nearest first."""
    return get_close_matches(name, [*known], MAX_SUGGESTIONS, ALIKE)


def question(name: str, known: Iterable[str]) -> str:
    """The similar names as a question, such as `did you mean desk?`; empty if none is similar."""
    found = near(name, known)
    return f"did you mean {', '.join(found)}?" if found else ""


def clause(name: str, known: Iterable[str]) -> str:
    """The similar names as the end of a sentence; empty if none is similar."""
    asked = question(name, known)
    return f"; {asked}" if asked else ""
