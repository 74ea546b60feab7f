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
    """Text of whole sentences, in Markdown, and the line where it begins, counted from 1."""

    line: int
    text: str


def paragraphs(lines: Sequence[str], first: int) -> Iterator[Passage]:
    """Paragraphs, entries of a section such as `Raises:` without their names, and cells of a table.

    A row of a table has two spaces or more between its cells. Its last cell continues in lines that are
    indented deeper than the row. What a person types after `$` or `>>>` is left out.

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
    """The comment of one line, and where it begins."""

    line: int
    """Counted from 1."""
    column: int
    alone: bool
    """Only white space is before it on its line."""
    text: str


def joined(lines: Iterable[CommentLine]) -> Iterator[Passage]:
    """Passages of comments. A comment continues on the next line, alone and in the same column."""
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
    """The lines of a comment that begins at an offset of a source; all have the column of the first."""
    begin = source.rfind("\n", 0, start) + 1
    line = source.count("\n", 0, start) + 1
    for number, each in enumerate(text.split("\n")):
        yield CommentLine(line + number, start - begin, number > 0 or not source[begin:start].strip(), each)
