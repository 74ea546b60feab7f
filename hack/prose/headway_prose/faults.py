"""Finds long sentences and retired phrases in pages and sources. Compares them with the allow-list."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .comments import comments
from .identifiers import retired_names
from .passages import Passage
from .phrases import PHRASES, SOURCES, Phrase
from .python_source import passages
from .sentences import sentences

WORDS = 25
"""Maximum words of a sentence."""


@dataclass(frozen=True)
class Fault:
    """One thing to mend: its line, the sentence, and what to do."""

    line: int
    sentence: str
    advice: str


def faults(text: str, phrases: Sequence[Phrase] = PHRASES) -> Iterator[Fault]:
    """Faults of a page, in the order of its lines. `phrases`: what is retired in it."""
    for sentence in sentences(text):
        if sentence.words > WORDS:
            advice = f"{sentence.words} words: split it into sentences of at most {WORDS}"
            yield Fault(sentence.line, sentence.text, advice)
        for phrase in phrases:
            if found := phrase.pattern.search(sentence.text):
                yield Fault(sentence.line, sentence.text, f'"{found[0]}": write {phrase.instead}')


def faults_of_source(source: str, *, messages: bool) -> Iterator[Fault]:
    """Faults of a Python source, in the order of its lines; of its messages only if wanted."""
    return _of_passages(passages(source, messages=messages), (*PHRASES, *SOURCES))


def faults_of_names(path: str, source: str) -> Iterator[Fault]:
    """Names of a Python source that have a retired word, by its path from the root and its text."""
    for found in retired_names(path, source):
        yield Fault(found.line, f"the name {found.name}", f'"{found.word}": write {found.instead}')


def faults_of_comments(name: str, source: str) -> Iterator[Fault]:
    """Faults of the comments of a file in another language, by its path from the root and its text."""
    return _of_passages(comments(name, source), PHRASES)


def _of_passages(found: Iterable[Passage], phrases: Sequence[Phrase]) -> Iterator[Fault]:
    for passage in found:
        for fault in faults(passage.text, phrases):
            yield replace(fault, line=passage.line + fault.line - 1)


def allowed(text: str) -> dict[str, int]:
    """Path and number of faults, from lines like `12 docs/page.md`; `#` begins a comment.

    Raises ValueError, which names the line, for anything else.
    """
    read: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not (plain := line.partition("#")[0].strip()):
            continue
        found = re.fullmatch(r"([1-9][0-9]*) (\S+)", plain)
        if not found or found[2] in read:
            raise ValueError(f"line {number} is {plain!r}: write a count and a path, and each path once")
        read[found[2]] = int(found[1])
    return read


def verdicts(found: Mapping[str, list[Fault]], allowance: Mapping[str, int]) -> Iterator[str]:
    """What fails the check, in words. `found` has every file that is checked, by its path."""
    for name in sorted(found.keys() | allowance.keys()):
        many, limit = len(found.get(name, ())), allowance.get(name, 0)
        if name not in found:
            yield f"{name}: no such file is checked; remove its line from the allow-list"
        elif many > limit:
            yield from (f"{name}:{each.line}: {each.sentence}\n    {each.advice}" for each in found[name])
            if limit:
                yield f"{name}: {many} faults, and {limit} are allowed; mend {many - limit}"
        elif many < limit:
            lower = f"write {many} in the allow-list" if many else "remove its line from the allow-list"
            yield f"{name}: {many} faults, and {limit} are allowed; {lower}"
