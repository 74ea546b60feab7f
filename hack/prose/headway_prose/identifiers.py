"""Finds retired words in the names that a Python source defines. Pure functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath

from .pages import has_messages
from .phrases import NAMES, PHRASES

FOREIGN = {
    "figure": "matplotlib calls what it draws so",
    "leverage": "statistics call the diagonal of the hat matrix so",
}
"""Names from other software or fields that contain a retired word, each with the reason why it is allowed."""
_PHRASES = (*(phrase for phrase in PHRASES if not phrase.pattern.pattern.startswith("^")), *NAMES)
"""The phrases to look for in names, without those that only match at the beginning of a sentence."""
_ANY = re.compile("|".join(phrase.pattern.pattern for phrase in _PHRASES), re.IGNORECASE)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_API_NAME = re.compile(r"(?:[A-Z][a-z]+){2,}")


@dataclass(frozen=True)
class RetiredName:
    """A name with a retired word: the line of its first definition, and what to write instead of the word."""

    line: int
    name: str
    word: str
    instead: str


def words(name: str) -> str:
    """The words of a name in snake_case or CamelCase, in lower case, with spaces between."""
    return " ".join(_WORD.findall(name)).lower()


def retired_names(path: str, source: str) -> Iterator[RetiredName]:
    """Retired words in the names that a source defines, in its module's name, and in names of the API.

    A name of the API, such as a condition's reason, is a string of several words in CamelCase. The function
    looks for such strings only in sources whose strings are messages (`has_messages`).

    Raises:
        SyntaxError: the source is not Python.
    """
    seen: set[str] = set()
    names = _names(ast.parse(source), strings=has_messages(path))
    for line, name in ((1, PurePosixPath(path).stem), *names):
        if name in seen or name in FOREIGN:
            continue
        seen.add(name)
        for word, instead in _retired(words(name)):
            yield RetiredName(line, name, word, instead)


@cache
def _retired(text: str) -> tuple[tuple[str, str], ...]:
    """Retired words in the words of a name, each with its replacement. Cached: most names occur many
    times."""
    if not _ANY.search(text):
        return ()
    found = ((phrase.pattern.search(text), phrase.instead) for phrase in _PHRASES)
    return tuple((match[0], instead) for match, instead in found if match)


def _names(tree: ast.Module, *, strings: bool) -> list[tuple[int, str]]:
    """Line and name of each definition, by line. Names that are only used may belong to other software."""
    return sorted(
        (getattr(node, "lineno", 1), name)
        for node in ast.walk(tree)
        if strings or not isinstance(node, ast.Constant)
        for name in _defined(node)
    )


def _defined(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.arg():
            yield node.arg
        case ast.Name(ctx=ast.Store()):
            yield node.id
        case ast.Attribute(ctx=ast.Store()):
            yield node.attr
        case ast.alias(asname=str(name)):
            yield name
        case ast.Constant(value=str(text)) if _API_NAME.fullmatch(text):
            yield text
        case _:
            pass
