"""Wraps labelled rows at any width, between words, so that numbers stay whole. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, chop_cells
from rich.text import Text

LABEL: Final = 11
"""Width of the labels, in columns."""
MAX_BAR: Final = 40
"""Maximum width of a progress bar, in columns."""
MIN_BAR: Final = 8
"""Minimum width of a progress bar, in columns. With less room, no bar is drawn."""
NARROW: Final = 32
"""Below this width, in columns, a label has a line of its own."""


@dataclass(frozen=True)
class Bar:
    """A progress bar of the finished share, from 0 to 1. It is as wide as the line allows."""

    share: float


@dataclass(frozen=True)
class Row:
    """A label and its text in pieces. Lines break between pieces, or between the words of a long piece."""

    label: str
    pieces: tuple[str, ...]
    style: str = ""
    bar: Bar | None = None
    """Progress bar before the pieces, if the first line has room for it; None for no bar."""


def lines(rows: Sequence[Row], width: int, *, ascii_only: bool = False) -> list[Text]:
    """The rows as lines of at most `width` columns."""
    return [line for row in rows for line in _lines(row, max(1, width), ascii_only)]


def _lines(row: Row, width: int, ascii_only: bool) -> Iterator[Text]:
    indent = LABEL if width >= NARROW else 0
    filled = list(filled_lines(row.pieces, width - indent))
    if indent == 0 and row.label:
        yield from (Text(each, "dim") for each in wrapped(row.label, width))
    for number, line in enumerate(filled):
        label = row.label if number == 0 and indent else ""
        text = Text().append(f"{label:<{indent}}", "dim")
        if number == 0 and row.bar is not None:
            room = min(MAX_BAR, width - indent - cell_len(filled[0]) - 1)
            if room >= MIN_BAR:
                text.append_text(_bar(row.bar.share, room, ascii_only)).append(" ")
        yield text.append(line, row.style)


def filled_lines(pieces: Sequence[str], width: int) -> Iterator[str]:
    """Lines of pieces, separated by semicolons. Each line has as many pieces as fit into `width` columns."""
    line = ""
    for number, piece in enumerate(pieces):
        piece = piece if number == len(pieces) - 1 else f"{piece};"
        if line and cell_len(line) + 1 + cell_len(piece) <= width:
            line = f"{line} {piece}"
            continue
        if line:
            yield line
        *whole, line = wrapped(piece, width)
        yield from whole
    if line:
        yield line


def wrapped(text: str, width: int) -> list[str]:
    """Text as lines of at most `width` columns, broken between words. A word longer than a line is split."""
    found: list[str] = []
    for word in text.split(" "):
        if found and cell_len(f"{found[-1]} {word}") <= width:
            found[-1] = f"{found[-1]} {word}"
        else:
            found += chop_cells(word, width) if cell_len(word) > width else [word]
    return found or [""]


def _bar(share: float, width: int, ascii_only: bool) -> Text:
    done = int(max(0.0, min(1.0, share)) * width)
    full, empty = ("#", ".") if ascii_only else ("━", "─")
    return Text(full * done, "green").append(empty * (width - done), "dim")
