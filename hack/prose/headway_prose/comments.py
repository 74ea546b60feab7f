"""Finds comments in files of other languages than Python. The file's name decides the language. Pure
functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from .passages import CommentLine, Passage, comment_lines, joined

_STRING = r"\"(?:\\.|[^\"\\\n])*\"|(?<!\w)'(?:\\.|[^'\\\n])*'"
"""A string in quotes. A single quote after a letter is an apostrophe, and begins no string."""
_HASH = re.compile(rf"{_STRING}|(?<!\S)#(?P<text>[^\n]*)")
"""In YAML, TOML, shells and make, `#` begins a comment only after white space."""
_SLASHES = re.compile(rf"`[^`]*`|{_STRING}|//(?P<text>[^\n]*)")
_DASHES = re.compile(rf"{_STRING}|--(?P<text>[^\n]*)")
_BRACES = re.compile(r"\{\{-?\s*/\*(?P<text>.*?)\*/\s*-?\}\}|\{#-?(?P<jinja>.*?)-?#\}", re.DOTALL)
_LANGUAGES = (
    (re.compile(r"(?:^|/)(?:Makefile|Dockerfile|\.\w+ignore)$|\.(?:ya?ml|toml|sh|in)$|^\.ci/"), _HASH),
    (re.compile(r"\.go$"), _SLASHES),
    (re.compile(r"\.lua$"), _DASHES),
    (re.compile(r"\.(?:tpl|j2)$"), _BRACES),
)
_PRAGMA = re.compile(r"^\s*(?:!|go:\w|shellcheck |syntax=|nolint)")


def has_comments(name: str) -> bool:
    """Whether this module supports the comments of a file with this path from the root."""
    return any(names.search(name) for names, _ in _LANGUAGES)


def comments(name: str, source: str) -> Iterator[Passage]:
    """Comments of a file, except pragmas. A YAML file may be a template of the chart, with Go template
    comments."""
    for names, pattern in _LANGUAGES:
        if names.search(name):
            yield from joined(_lines(pattern, source))
    if name.endswith(".yaml"):
        yield from joined(_lines(_BRACES, source))


def _lines(pattern: re.Pattern[str], source: str) -> Iterator[CommentLine]:
    """Lines of comments, except pragmas."""
    for found in pattern.finditer(source):
        text = next((each for each in found.groupdict().values() if each is not None), None)
        if text is None:
            continue
        for each in comment_lines(source, found.start(), text):
            if not _PRAGMA.match(each.text):
                yield replace(each, text=each.text.lstrip("#"))
