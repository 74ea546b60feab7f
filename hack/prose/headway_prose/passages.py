"""Joins lines of docstrings and comments into passages of whole sentences. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_SECTION = re.compile(r"(?:Args|Raises|Returns|Yields|Attributes):")
_ENTRY = re.compile(r"\*{0,2}[\w.]+:\s+")
_COLUMNS = re.compile(r"(?<=\S)\s{2,}(?=\S)")
_TYPED = (">>> ", "$ ")


@dataclass(frozen=True)
class Passage:
    """A Markdown text of whole sentences, and the number of its first line, from 1."""

    line: int
    text: str


def paragraphs(lines: Sequence[str], first: int) -> Iterator[Passage]:
    """Splits lines into paragraphs, entries of a section such as `Raises:` without their names, and table
    cells.

    A row of a table has two spaces or more between its cells. Its last cell continues in lines that are
    indented deeper than the row. The function leaves out commands after `$` or `>>>`.

    Args:
        first: the number of the first line.
    """
    held: list[str] = []
    start = first
    section = False
    row: int | None = None
    for number, raw in enumerate([*lines, ""], start=first):
        line = raw.strip()
        indent = len(raw) - len(raw.lstrip())
        heading, cells = _SECTION.fullmatch(line), _COLUMNS.split(line)
        entry = _ENTRY.match(line) if section else None
        out_of_row = row is not None and indent <= row
        if not line or heading or entry or len(cells) > 1 or out_of_row or line.startswith(_TYPED):
            if held:
                yield Passage(start, "\n".join(held))
            held, start, row = [], number, None
        if not line or heading or line.startswith(_TYPED):
            section = bool(heading)
        elif len(cells) > 1:
            yield from (Passage(number, cell) for cell in cells[:-1])
            held, row = [cells[-1]], indent
        else:
            start = start if held else number
            held.append(line[entry.end() :] if entry else line)


@dataclass(frozen=True)
class CommentLine:
    """A comment on one line, and its position."""

    line: int
    """Number of the line, from 1."""
    column: int
    alone: bool
    """Whether only white space precedes the comment on its line."""
    text: str


def joined(lines: Iterable[CommentLine]) -> Iterator[Passage]:
    """Joins comments into passages. A comment continues on the next line if it is alone there, in the same
    column.
    """
    held: list[CommentLine] = []
    for each in lines:
        if held and not (each.alone and each.line == held[-1].line + 1 and each.column == held[0].column):
            yield from _passages(held)
            held = []
        held.append(each)
    yield from _passages(held)


def _passages(held: Sequence[CommentLine]) -> Iterator[Passage]:
    if held:
        yield from paragraphs([each.text for each in held], held[0].line)


def comment_lines(source: str, start: int, text: str) -> Iterator[CommentLine]:
    """The lines of a comment that begins at offset `start` of a source. All get the column of the first
    line."""
    begin = source.rfind("\n", 0, start) + 1
    line = source.count("\n", 0, start) + 1
    for number, each in enumerate(text.split("\n")):
        yield CommentLine(line + number, start - begin, number > 0 or not source[begin:start].strip(), each)
