"""Splits Markdown into sentences and counts their words as a person would. Pure functions of a page's
text."""

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
    """A sentence, cell or heading: the number of its first line, from 1, and its text joined to one line."""

    line: int
    text: str

    @property
    def words(self) -> int:
        return len(self.text.split())


def without_code(text: str) -> str:
    """The page without code blocks and comments. Line numbers stay the same."""
    return FENCE.sub(_lines_of, COMMENT.sub(_lines_of, text))


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, list items, headings and table cells, each with its first line. Their line ends are
    kept."""
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
    """The sentences of a page. A link counts as its text, and a code span as one word."""
    for start, block in blocks(text):
        plain = LINK.sub(r"\1", _SPAN_OF_BLOCK.sub(lambda span: "code" + _lines_of(span), block))
        line = start
        for part in _split(plain.replace("**", "")):
            if re.search(r"\w", part):
                yield Sentence(line, " ".join(part.split()))
            line += part.count("\n")


def _split(text: str) -> Iterator[str]:
    """The sentences of a text, each with the white space after it, so that no line end is lost."""
    begin = 0
    for end in _END.finditer(text):
        yield text[begin : end.end()]
        begin = end.end()
    yield text[begin:]


def _lines_of(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")
