"""Code blocks of the documentation, the commands in them, and tables that say how each block is checked."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
NOT_READ = ("docs/adr/", "bench/results/", "CHANGELOG.md")
"""Pages whose blocks are not checked: records of the past, and pages that benchmarks write."""
Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Block:
    """A block as a page shows it; `language` is the first word behind its fence."""

    page: str
    """Path in the repository."""
    line: int
    """Line of its fence, from 1."""
    language: str
    text: str
    fenced: bool = True

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """Blocks of a page, those in lists included, without their indentation."""
    for token in MarkdownIt().parse(text):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            language = token.info.strip().partition(" ")[0]
            yield Block(page, token.map[0] + 1, language, token.content, token.type == "fence")


@cache
def pages() -> dict[str, str]:
    """Path and text of every page that git tracks, except those in `NOT_READ`."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    known = [name for name in listed.stdout.splitlines() if not name.startswith(NOT_READ)]
    return {name: (ROOT / name).read_text() for name in known if (ROOT / name).is_file()}


@cache
def blocks() -> tuple[Block, ...]:
    """Every block of every page, by page and line."""
    return tuple(each for name, text in pages().items() for each in blocks_of(name, text))


def spans() -> Iterator[tuple[str, str]]:
    """Page and text of every piece of code in a sentence or a table."""
    for name, text in pages().items():
        for token in MarkdownIt().enable("table").parse(text):
            for child in token.children or ():
                if child.type == "code_inline":
                    yield name, child.content


def of(*languages: str) -> list[Block]:
    """The blocks in these languages."""
    return [block for block in blocks() if block.language in languages]


class Table(Generic[Entry]):
    """A table with an entry for some blocks. A key is a page, and words of only one block of the page.

    Line numbers are no keys, since they would change with every edit of a page.
    """

    def __init__(self, entries: Mapping[tuple[str, str], Entry]) -> None:
        self._entries = entries

    def get(self, block: Block) -> Entry | None:
        """The entry of a block; None if there is none."""
        found = [entry for key, entry in self._entries.items() if _names(key, block)]
        return found[0] if found else None

    def wrong(self, among: Iterable[Block] | None = None) -> list[str]:
        """A message for each entry that names no block, or several, with what to do."""
        candidates = list(blocks() if among is None else among)
        count = {key: sum(_names(key, block) for block in candidates) for key in self._entries}
        return [
            f"{page} has {number} blocks with {words!r}: "
            + ("remove the entry, or write words of the block" if number == 0 else "write words of one alone")
            for (page, words), number in count.items()
            if number != 1
        ]


def _names(key: tuple[str, str], block: Block) -> bool:
    return key[0] == block.page and key[1] in block.text


# what a block of a shell says


@dataclass(frozen=True)
class Typed:
    """What a person types at a prompt, and what the command prints."""

    text: str
    """The command without its `$ `. Continued lines are joined."""
    printed: str


@dataclass(frozen=True)
class Call:
    """One program that a line starts."""

    program: str
    words: tuple[str, ...]
    """Its arguments."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that the line sets only for this program."""


def typed(block: Block) -> list[Typed]:
    """Commands of a console block. A line without a prompt is output of the command before it.

    A block that begins without a prompt begins with an empty command.
    """
    found: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        elif not found:
            found.append(("", [line]))
        elif found[-1][0].endswith("\\"):
            found[-1] = (f"{found[-1][0][:-1].rstrip()} {line.strip()}", [])
        else:
            found[-1][1].append(line)
    return [Typed(text, "\n".join(lines).strip("\n")) for text, lines in found]


SEPARATORS = re.compile(r"[;&|()]+")
KEYWORDS = ("until", "while", "do", "done", "if", "then", "fi", "!", "sudo")
ASSIGNMENT = re.compile(r"([A-Z_]+)=(.*)", re.DOTALL)
SUBSTITUTION = re.compile(r"\$\((.*)\)", re.DOTALL)


def calls(text: str) -> Iterator[Call]:
    """Every program of a command line: of pipes, lists and loops, and those whose output is substituted."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split = True
    for words in _split(list(lexer)):
        variables = {}
        while words and (words[0] in KEYWORDS or ASSIGNMENT.fullmatch(words[0])):
            if assigned := ASSIGNMENT.fullmatch(words[0]):
                variables[assigned[1]] = assigned[2]
            words = words[1:]
        for word in (*words, *variables.values()):
            if inner := SUBSTITUTION.search(word):
                yield from calls(inner[1])
        if words:
            yield Call(words[0], tuple(words[1:]), variables)


def _split(words: list[str]) -> Iterator[list[str]]:
    held: list[str] = []
    for word in [*words, ";"]:
        if not SEPARATORS.fullmatch(word):
            held.append(word)
        elif held:
            yield held
            held = []
