"""Splits Markdown into sentences, as a person counts them. Pure functions over the text of a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

FENCE = re.compile(r"^([ ]*)```.*?^\1```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_SPAN_OF_BLOCK = re.compile(r"`([^`]+)`")
_ITEM = re.compile(r"(?:[-*]|\d+\.)\s+")
_END = re.compile(r"(?<=[.!?])\s+|(?<=[.!?]\))\s+")


@dataclass(frozen=True)
class Sentence:
    """One sentence, cell or heading: its first line, counted from 1, and its words on one line."""

    line: int
    text: str

    @property
    def words(self) -> int:
        return len(self.text.split())


def without_code(text: str) -> str:
    """The page without code blocks and comments, and with as many lines."""
    return FENCE.sub(_lines_of, COMMENT.sub(_lines_of, text))


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, list items, headings and table cells with their first line; their line ends are kept."""
    held: list[str] = []
    start = 1
    for number, raw in enumerate([*without_code(text).splitlines(), ""], start=1):
        line = raw.strip().removeprefix("> ")
        item = _ITEM.match(line)
        if held and (not line or item or line.startswith(("#", "|"))):
            yield start, "\n".join(held)
            held = []
        if line.startswith("|"):
            yield from ((number, cell.strip()) for cell in re.split(r"(?<!\\)\|", line.strip("|")))
        elif line.startswith("#"):
            yield number, line.lstrip("# ")
        elif line:
            start = start if held else number
            held.append(line[item.end() :] if item else line)


def sentences(text: str) -> Iterator[Sentence]:
    """Sentences of a page: a link counts as its words, a code span as one word."""
    for start, block in blocks(text):
        plain = LINK.sub(r"\1", _SPAN_OF_BLOCK.sub(lambda span: "code" + _lines_of(span), block))
        line = start
        for part in _split(plain.replace("**", "")):
            if re.search(r"\w", part):
                yield Sentence(line, " ".join(part.split()))
            line += part.count("\n")


def _split(text: str) -> Iterator[str]:
    """Parts that end with the white space between sentences, so that no line end is lost."""
    begin = 0
    for end in _END.finditer(text):
        yield text[begin : end.end()]
        begin = end.end()
    yield text[begin:]


def _lines_of(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")
