"""Checks whether a job's splits share rows. Training and held-out splits must not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from headway_analysis.overlaps import Pair, content, normalized, repeated, shared
from headway_api.exits import JobError
from headway_api.rows import Row, prompt_of

MAX_EXAMPLES: Final = 3
MAX_CHARACTERS: Final = 60
"""The most characters of a quoted prompt."""
TRAIN: Final = "train"
ALIKE: Final = "have the same prompt, except for case and punctuation, as"


@dataclass(frozen=True)
class Split:
    """The rows of one split, which is one block of spec.data."""

    name: str
    rows: Sequence[Row]
    prompt_column: str | None = None

    @property
    def field(self) -> str:
        return f"spec.data.{self.name}"

    @cached_property
    def contents(self) -> list[str]:
        """Each row with all of its columns, as one text."""
        return [content(row) for row in self.rows]

    @cached_property
    def texts(self) -> list[str]:
        """Each row's prompt, normalized."""
        return [normalized(prompt_of(row, self.prompt_column)) for row in self.rows]

    def keys(self, columns: Sequence[str]) -> list[str]:
        """Each row's values in some columns, as one normalized text. Without columns, its prompt."""
        if not columns:
            return self.texts
        return [normalized(content({name: row.get(name) for name in columns})) for row in self.rows]

    @cached_property
    def distinguishing_columns(self) -> tuple[str, ...] | None:
        """The columns that tell rows apart by their content: no ids, and nothing that all rows share.

        None: a column has the prompt, or no column has text. Then rows are compared by prompt.
        """
        if self.prompt_column is not None or any("prompt" in row for row in self.rows):
            return None
        columns = {name: [row.get(name) for row in self.rows] for row in self.rows for name in row}
        found = tuple(
            name for name, values in columns.items() if not _is_id(values) and not _is_constant(values)
        )
        return found if any(_is_text(value) for name in found for value in columns[name]) else None

    def quoted(self, row: int) -> str:
        """A row's prompt, or its first text, cut to the length that fits a message."""
        found = (self.rows[row].get(name) for name in self.distinguishing_columns or ())
        text = next(filter(_is_text, found), None) or prompt_of(self.rows[row], self.prompt_column)
        text = " ".join(text.split())
        return f'"{text[:MAX_CHARACTERS]}{"..." if len(text) > MAX_CHARACTERS else ""}"'


def _is_text(value: object) -> bool:
    """Whether a value has several words."""
    return isinstance(value, str) and len(value.split()) > 1


def _is_id(values: Sequence[object]) -> bool:
    """Whether a column numbers or names its rows: each value is one word, and no two are equal."""
    if len(values) < 2 or any(not isinstance(value, str | int) or _is_text(value) for value in values):
        return False
    return len(set(values)) == len(values)


def _is_constant(values: Sequence[object]) -> bool:
    return len(values) > 1 and all(value == values[0] for value in values)


def check(splits: Sequence[Split], *, allowed: bool) -> list[str]:
    """Warnings about rows and prompts that splits share, and about prompts that a held-out split repeats.

    Raises:
        JobError: `SplitsOverlap`: a training row is in a held-out split too, and that is not `allowed`.
    """
    warnings = []
    for one, other in itertools.combinations(splits, 2):
        same = shared(other.contents, one.contents)
        if same and one.name == TRAIN and not allowed:
            raise JobError(
                "SplitsOverlap",
                f"{_overlap(same, other, one)}; remove them from one of the two, or write "
                "spec.data.allowOverlap: true",
                field=other.field,
            )
        if same:
            warnings.append(_overlap(same, other, one))
        known = {pair.row for pair in same}
        columns = _common(one, other)
        pairs = shared(other.keys(columns), one.keys(columns))
        alike = [pair for pair in pairs if pair.row not in known]
        if alike:
            warnings.append(_overlap(alike, other, one, ALIKE))
    return [*warnings, *_twice(splits)]


def _common(one: Split, other: Split) -> list[str]:
    """The columns by which rows of two splits are compared; empty if their prompts are compared instead."""
    if one.distinguishing_columns is None or other.distinguishing_columns is None:
        return []
    return [name for name in one.distinguishing_columns if name in other.distinguishing_columns]


def _twice(splits: Sequence[Split]) -> Iterator[str]:
    for split in splits:
        if split.name != TRAIN and (found := repeated(split.keys(split.distinguishing_columns or ()))):
            yield _overlap(found, split, split, "repeat the prompt, except for case and punctuation, of")


def _overlap(pairs: Sequence[Pair], here: Split, there: Split, are: str = "are also") -> str:
    examples = [
        f"row {pair.row} and row {pair.other}, {here.quoted(pair.row)}" for pair in pairs[:MAX_EXAMPLES]
    ]
    which = "earlier rows" if here is there else f"rows of {there.field}"
    return f"{len(pairs)} of {len(here.rows)} rows of {here.field} {are} {which}: {'; '.join(examples)}"


def of_job(rows: Mapping[str, Sequence[Row]], columns: Mapping[str, str | None]) -> list[Split]:
    """The splits of a job that have rows, in the order of `rows`. `columns`: prompt columns by split."""
    return [Split(name, found, columns.get(name)) for name, found in rows.items() if found]
