"""Text from models, tools and processes, made safe for a terminal."""

from __future__ import annotations

from typing import Final
from unicodedata import category

KEPT: Final = "\n\t"


def without_controls(text: str) -> str:
    """The text with a blank for each control character, which a terminal would obey. Lines and tabs stay."""
    return "".join(" " if category(each) == "Cc" and each not in KEPT else each for each in text)
