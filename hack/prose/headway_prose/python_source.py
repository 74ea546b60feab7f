"""Finds docstrings, comments and messages in the text of a Python source. Pure functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from .passages import CommentLine, Passage, comment_lines, joined, paragraphs
from .sentences import without_code

FEWEST_WORDS = 5
"""Minimum words of a message. A shorter string is a name or a label."""

# In Python 3.11 each string, also an f-string, ends at the first quote of its kind. So a regular expression
# is enough. The module tokenize would take twenty times as long.
_STRING_OR_COMMENT = re.compile(
    r'"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|#[^\n]*',
    re.DOTALL,
)
_PRAGMA = re.compile(r"#\s*(?:noqa\b|type:|fmt:|isort:|mypy:|ruff:|pragma:|!)[^#]*")
_CODE = re.compile(r"&&|\|\||\{%")
"""Signs that a string is CEL, shell code, or a chat template."""
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


def passages(source: str, *, messages: bool) -> list[Passage]:
    """Docstrings and comments of a source, and with `messages` also strings, in the order of its lines.

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


def comments(source: str) -> Iterator[Passage]:
    """The comments of a source, without pragmas."""
    return joined(_lines_of_comments(source))


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Statements that are only a string: docstrings of modules, classes, functions and attributes."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        for body in _BODIES:
            waiting += getattr(node, body, ())
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value


def _lines_of_comments(source: str) -> Iterator[CommentLine]:
    """Lines of comments, without pragmas and without comments that are only a pragma."""
    for found in _STRING_OR_COMMENT.finditer(source):
        text = _PRAGMA.sub("", found[0]) if found[0].startswith("#") else ""
        if text:
            yield from comment_lines(source, found.start(), text.lstrip("#"))


def _messages(tree: ast.Module, docstrings: Sequence[ast.Constant]) -> Iterator[Passage]:
    """Strings of several words that are neither a docstring nor code. `{}` stands for the fields of an
    f-string."""
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
