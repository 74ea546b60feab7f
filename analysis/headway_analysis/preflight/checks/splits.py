"""Checks that splits share no rows, and that an episode can start from every row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from headway_analysis.overlaps import content, repeated, shared
from headway_analysis.preflight.conversation import excerpt, folded, written
from headway_analysis.preflight.definition import MAX_EXAMPLES, Check, Example, Finding
from headway_analysis.preflight.evidence import Baseline, PlayedScript, Script
from headway_analysis.preflight.sources import GUIDE
from headway_api.document import JsonView

ID: Final = "splits"
STARTS: Final = 4
"""Rows of each split from which an episode is started."""
ROWS: Final = 100_000
"""The most rows of a split that are compared."""
RESET_FAILED: Final = "ResetFailed"
"""The reason of an episode whose environment raised an error at the reset."""
MAX_SHARED: Final = 0.01
MAX_REPEATED: Final = 0.05
MOSTLY: Final = 0.9
"""If this share of rows has a column, the other rows count as lacking it."""
NAMES: Final = frozenset(("id", "_id", "uid", "uuid", "idx", "index", "row", "row_id", "number"))
"""Columns that number rows. Two rows that differ only in these columns count as equal."""


def scripts(baseline: Baseline) -> Sequence[Script]:
    """Scripts that start an episode, on some rows of each split that the baseline did not play."""
    seen = {content(one.row) for one in baseline.scored}
    found: list[Script] = []
    for split, rows in _splits(baseline):
        fresh = [(number, row) for number, row in enumerate(rows[:1000]) if content(row) not in seen]
        step = max(1, len(fresh) // STARTS)
        for number, row in fresh[::step][:STARTS]:
            seed = baseline.facts.seed + number
            found.append(Script(ID, f"{split} row {number}", row, environment_seed=seed, answer=""))
    return found


def _splits(baseline: Baseline) -> list[tuple[str, Sequence[JsonView]]]:
    facts = baseline.facts
    named = (("train", facts.rows), ("validation", facts.validation), ("test", facts.test))
    return [(name, rows[:ROWS]) for name, rows in named if rows]


def judge(baseline: Baseline, played: Sequence[PlayedScript]) -> Finding:
    """The finding on rows that are shared or repeated, that lack a column, or that start no episode."""
    splits = _splits(baseline)
    if not splits:
        return Finding(ID, "Unknown", "No rows are known.", threshold=MAX_SHARED)
    keys = {name: _keys(rows) for name, rows in splits}
    found = [
        *_shared(splits, keys, baseline.facts.overlap_allowed),
        *_repeated(splits, keys),
        *_columns(splits, baseline),
    ]
    found += _unstarted(baseline, played)
    counts = ", ".join(f"{len(rows)} {name}" for name, rows in splits)
    if not found:
        observed = f"{counts} rows: none shared, columns alike, and every row tried starts an episode."
        return Finding(ID, "Pass", observed, 0.0, MAX_SHARED)
    worst = [example for fails, example in found if fails]
    shown = [*worst, *(example for fails, example in found if not fails)]
    return Finding(
        ID,
        "Fail" if worst else "Warn",
        f"{counts} rows: {'; '.join(example.title for example in shown[:6])}.",
        float(len(shown)),
        0.0,
        advice="Split the rows once, by their subject, before anything is measured. Correct the rows that "
        "are named.",
        field="spec.data",
        examples=tuple(shown[:MAX_EXAMPLES]),
    )


Faults = Iterator[tuple[bool, Example]]
"""Whether the fault makes the check fail, and an example of the fault."""


def _keys(rows: Sequence[JsonView]) -> list[str]:
    """A key for each row; equal keys mean equal rows. Columns that number rows are left out."""
    whole = [folded(content(row)) for row in rows]
    if not any(NAMES & row.keys() for row in rows[:10]):
        return whole
    less = [folded(content({k: v for k, v in row.items() if k.lower() not in NAMES})) for row in rows]
    # If most rows are equal without these columns, the numbers are the rows' content.
    return less if len(set(less)) > len(less) / 2 else whole


def _shared(
    splits: Sequence[tuple[str, Sequence[JsonView]]], keys: Mapping[str, Sequence[str]], allowed: bool
) -> Faults:
    for at, (name, rows) in enumerate(splits):
        for other, others in splits[:at]:
            pairs = shared(keys[name], keys[other])
            if pairs:
                title = f"{len(pairs)} of {len(rows)} {name} rows are {other} rows too"
                text = f"{name} row {pairs[0].row}: {written(rows[pairs[0].row])}"
                text += f"\n{other} row {pairs[0].other}: {written(others[pairs[0].other])}"
                grave = len(pairs) > MAX_SHARED * len(rows) and not allowed
                yield grave, Example(title, excerpt(text))


def _repeated(splits: Sequence[tuple[str, Sequence[JsonView]]], keys: Mapping[str, Sequence[str]]) -> Faults:
    for name, rows in splits:
        pairs = repeated(keys[name])
        if len(pairs) > MAX_REPEATED * len(rows):
            title = f"{len(pairs)} of {len(rows)} {name} rows repeat an earlier one"
            text = f"rows {pairs[0].other} and {pairs[0].row}: {written(rows[pairs[0].row])}"
            yield False, Example(title, excerpt(text))


def _columns(splits: Sequence[tuple[str, Sequence[JsonView]]], baseline: Baseline) -> Faults:
    first = splits[0][1]
    counts = _filled(first)
    prompt = baseline.facts.prompt_column
    for name, rows in splits:
        filled = _filled(rows)
        for column, count in counts.items():
            usual = count >= MOSTLY * len(first)
            lacking = len(rows) - filled.get(column, 0)
            if not usual or not lacking:
                continue
            number = next(at for at, row in enumerate(rows) if row.get(column) in (None, ""))
            title = f"{lacking} of {len(rows)} {name} rows have no {column}"
            grave = column == prompt or lacking == len(rows)
            yield grave, Example(title, excerpt(f"{name} row {number}: {written(rows[number])}"))


def _filled(rows: Sequence[JsonView]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        for column, value in row.items():
            if value not in (None, ""):
                found[column] = found.get(column, 0) + 1
    return found


def _unstarted(baseline: Baseline, played: Sequence[PlayedScript]) -> Faults:
    """Rows from which no episode started because the reset failed, in scripts and in the baseline."""
    for one in played:
        if one.cause == RESET_FAILED:
            text = f"{one.error}\n{written(one.script.row)}"
            yield True, Example(f"no episode starts from {one.script.label}", excerpt(text))
    for sampled in baseline.sampled:
        if sampled.record.cause == RESET_FAILED:
            text = f"{sampled.record.error}\n{written(sampled.row)}"
            title = f"no episode starts from train row {sampled.group.row}"
            yield True, Example(title, excerpt(text), sampled.record.episode_id)


CHECK: Final = Check(
    id=ID,
    meaning="Train, validation and test share rows, or have unusable rows.",
    number="Rows that two splits share, and rows that one split repeats. Rows are compared by all columns "
    f"but a row number. Columns that {MOSTLY:.0%} of the training rows have and another split lacks. "
    f"Rows that no episode can start from, of {STARTS} tried in each split.",
    threshold=f"Fails if over {MAX_SHARED:.0%} of a split's rows are shared (warns if "
    "spec.data.allowOverlap is true), or no episode starts from a tried row. Fails if a split "
    "lacks a column, or a row lacks its prompt. Warns if fewer rows are shared, some rows lack a "
    f"column, or over {MAX_REPEATED:.0%} are repeated.",
    reason="A model that is measured on rows it was trained on looks better than it is.",
    source=f"{GUIDE}: split train, validation and held-out test before anything else.",
    advice="Split the rows once, before anything is measured.",
    judge=judge,
    scripts=scripts,
    needs_model=False,
)
