"""Finds long sentences and retired phrases in pages and sources, and compares their number with the
allow-list."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .comments import comments
from .identifiers import retired_names
from .passages import Passage
from .phrases import EVERYWHERE, PHRASES, Phrase
from .python_source import passages
from .sentences import Sentence, sentences

WORDS = 25
"""Maximum words of a sentence."""


@dataclass(frozen=True)
class Fault:
    """A fault in a text: its line, the sentence, and what to do."""

    line: int
    sentence: str
    advice: str


def faults(text: str) -> Iterator[Fault]:
    """Faults of a page that a person writes, in the order of its lines."""
    for sentence in sentences(text):
        if sentence.words > WORDS:
            advice = f"{sentence.words} words: split it into sentences of at most {WORDS}"
            yield Fault(sentence.line, sentence.text, advice)
        yield from _retired(sentence, (*PHRASES, *EVERYWHERE))


def faults_of_results(text: str) -> Iterator[Fault]:
    """Words that are retired everywhere, in a page that a benchmark or a test writes, by line."""
    for sentence in sentences(text):
        yield from _retired(sentence, EVERYWHERE)


def _retired(sentence: Sentence, phrases: Sequence[Phrase]) -> Iterator[Fault]:
    for phrase in phrases:
        if found := phrase.pattern.search(sentence.text):
            yield Fault(sentence.line, sentence.text, f'"{found[0]}": write {phrase.instead}')


def faults_of_source(source: str, *, messages: bool) -> Iterator[Fault]:
    """Faults of a Python source, in the order of its lines.

    Args:
        messages: check strings as fully as docstrings. Otherwise check them only for words retired
            everywhere.
    """
    prose = [*passages(source, messages=messages)]
    strings = [each for each in passages(source, messages=True) if each not in prose]
    found = (*_of_passages(prose, faults), *_of_passages(strings, faults_of_results))
    return iter(sorted(found, key=lambda fault: fault.line))


def faults_of_names(path: str, source: str) -> Iterator[Fault]:
    """Names with a retired word in a Python source with this path from the root, and this text."""
    for found in retired_names(path, source):
        yield Fault(found.line, f"the name {found.name}", f'"{found.word}": write {found.instead}')


def faults_of_comments(name: str, source: str) -> Iterator[Fault]:
    """Faults in the comments of a file in another language, with this path from the root, and this text."""
    return _of_passages(comments(name, source), faults)


def _of_passages(found: Iterable[Passage], judge: Callable[[str], Iterator[Fault]]) -> Iterator[Fault]:
    for passage in found:
        for fault in judge(passage.text):
            yield replace(fault, line=passage.line + fault.line - 1)


def allowed(text: str) -> dict[str, int]:
    """Path -> number of allowed faults, from lines such as `12 docs/page.md`. `#` begins a comment.

    Raises:
        ValueError: a line has another form, or repeats a path; the message names the line.
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
    """Messages about files that fail the check. `found` has the faults of every checked file, by its path."""
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
