"""Findings as text for a person."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from headway_analysis.preflight.definition import Finding
from headway_analysis.preflight.run import GRAVEST_FIRST

NARROWEST: Final = 40
NAMES: Final = 16
"""Width of the column with a check's id, in characters."""
INDENT: Final = " " * 8
WORDS: Final = {"Fail": "failed", "Warn": "warned", "Unknown": "unknown", "Pass": "passed"}


def width() -> int | None:
    """Columns of the terminal; None if the output is not a terminal, so that lines may have any length."""
    return max(NARROWEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None


def lines(finding: Finding, columns: int | None) -> Iterator[str]:
    """A finding as lines of text: its verdict, the observation, the advice, and example episodes.

    Args:
        finding: the finding.
        columns: maximum length of a line; None for no limit.
    """
    head = f"{finding.verdict:<7} {finding.check:<{NAMES}} "
    yield from _wrapped(head + finding.observed, INDENT, columns)
    if finding.verdict == "Pass":
        return
    where = f" ({finding.field})" if finding.field and finding.field not in finding.advice else ""
    if finding.advice:
        yield from _wrapped(f"{INDENT}fix: {finding.advice}{where}", INDENT, columns)
    for example in finding.examples:
        yield from _wrapped(f"{INDENT}{example.title}:", INDENT, columns)
        yield from (f"{INDENT}  {line}".rstrip() for line in example.text.splitlines())


def _wrapped(text: str, indent: str, columns: int | None) -> Sequence[str]:
    if columns is None:
        return [text]
    return textwrap.wrap(text, columns, subsequent_indent=indent, break_on_hyphens=False) or [text]


def summary(found: Sequence[Finding]) -> str:
    """The number of findings of each verdict, as text: `1 failed, 7 passed`."""
    counts = Counter(finding.verdict for finding in found)
    return ", ".join(f"{counts[verdict]} {WORDS[verdict]}" for verdict in GRAVEST_FIRST if counts[verdict])
