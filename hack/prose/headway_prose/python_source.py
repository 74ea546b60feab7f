"""Finds docstrings, comments and messages in the text of a Python source. Pure functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .sentences import without_code

FEWEST_WORDS = 5
"""Words of a message. A shorter string is a name or a label."""

# In Python 3.11 each string ends at the first quote of its kind, an f-string too, so this needs no parser.
# The module tokenize takes twenty times as long.
_STRING_OR_COMMENT = re.compile(
    r'"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|#[^\n]*',
    re.DOTALL,
)
_PRAGMA = re.compile(r"#\s*(?:noqa\b|type:|fmt:|isort:|mypy:|ruff:|pragma:|!)[^#]*")
_CODE = re.compile(r"[{<\n]|&&|\|\|")
_SECTION = re.compile(r"(?:Args|Raises|Returns|Yields|Attributes):")
_ENTRY = re.compile(r"\*{0,2}[\w.]+:\s+")
_COLUMNS = re.compile(r"(?<=\S)\s{2,}(?=\S)")
_TYPED = (">>> ", "$ ")
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


@dataclass(frozen=True)
class Passage:
    """Text of whole sentences, in Markdown, and the line where it begins, counted from 1."""

    line: int
    text: str


def passages(source: str, *, messages: bool) -> list[Passage]:
    """What a person wrote in a source, in the order of its lines. `messages`: strings that are messages too.

    Raises:
        SyntaxError: the source is not Python.
    """
    tree = ast.parse(source)
    docstrings = [*_docstrings(tree)]
    found = [*comments(source)]
    for docstring in docstrings:
        found += paragraphs(without_code(docstring.value).split("\n"), docstring.lineno)
    if messages:
        found += _messages(tree, docstrings)
    return sorted(found, key=lambda passage: passage.line)


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


def comments(source: str) -> Iterator[Passage]:
    """Comments without pragmas. Those of consecutive lines that begin in one column belong together."""
    held: list[str] = []
    start, column = 1, 0
    for line, place, text in _lines_of_comments(source):
        if held and (line != start + len(held) or place != column):
            yield from paragraphs(held, start)
            held = []
        if not held:
            start, column = line, place
        held.append(text)
    yield from paragraphs(held, start)


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Statements that are a string: docstrings of modules, classes, functions and attributes."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        for body in _BODIES:
            waiting += getattr(node, body, ())
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value


def _lines_of_comments(source: str) -> Iterator[tuple[int, int, str]]:
    """Line, column and text of each comment that has more than a pragma."""
    line, counted = 1, 0
    for found in _STRING_OR_COMMENT.finditer(source):
        if found[0].startswith("#"):
            line, counted = line + source.count("\n", counted, found.start()), found.start()
            text = _PRAGMA.sub("", found[0])
            if text:
                yield line, found.start() - source.rfind("\n", 0, found.start()), text.lstrip("#")


def _messages(tree: ast.Module, docstrings: Sequence[ast.Constant]) -> Iterator[Passage]:
    """Strings of some words that are no docstring and no code. `{}` is what an f-string fills in."""
    seen = {id(docstring) for docstring in docstrings}
    for node in ast.walk(tree):
        if id(node) in seen:
            continue
        if isinstance(node, ast.JoinedStr):
            seen |= {id(part) for part in node.values}
            parts = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts = [node.value]
        else:
            continue
        code = any(_CODE.search(str(part)) for part in parts if part is not None)
        text = "".join("{}" if part is None else str(part) for part in parts)
        if not code and len(text.split()) >= FEWEST_WORDS:
            yield Passage(node.lineno, text)
