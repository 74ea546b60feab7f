"""Finds the rows' column with the label (the expected answer), and makes answers from labels."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headway_analysis.overlaps import normalized
from headway_analysis.preflight.answers import ParsedAnswer, parsed, tags_in
from headway_analysis.preflight.choose import is_full
from headway_analysis.preflight.conversation import folded, model_answer, prompt_text, written
from headway_analysis.preflight.evidence import Baseline
from headway_api.document import JsonView

SURE: Final = frozenset(
    ("expected", "label", "labels", "answer", "answers", "truth", "groundtruth", "solution", "correct")
)
"""Words in a column's name that mark it as the label's column."""
WITH_SURE: Final = frozenset(("ground", "final", "gold", "output", "value", "values", "fields"))
"""Further words that the name of such a column may have."""
LIKELY: Final = frozenset(("target", "targets", "gold", "golden", "reference", "output"))
"""Words in a column's name that mark it as the label's column, if prompts do not contain its values."""
ABOUT: Final = frozenset(("format", "type", "types", "set", "schema", "id", "template", "count", "column"))
"""Words in a column's name that mark it as a description of labels, not as labels."""
REVEALING: Final = SURE | {"ground"}
"""Words in a text, or in the name of a tool's field, that mark a value as the label."""
USUAL_TAGS: Final = ("final_output", "answer", "final_answer", "output", "result")
ANSWERING: Final = frozenset(
    ("answer", "final", "output", "result", "response", "solution", "decision", "reply", "submission")
)
"""Words in a tag's name that mark it as the answer's tag, not as a tag around an input."""
ALIKE: Final = 0.8
"""A column is the label's if its values equal at least this share of the full-scoring answers."""
FEW: Final = 3
_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


@dataclass(frozen=True)
class Label:
    """The column that has the label."""

    column: str
    named: bool
    """Whether the column's name shows that it is the label. If not, its values equal full-scoring answers."""


def words_of(name: str) -> set[str]:
    """The words of a name in lower case. `expectedAnswer` and `expected_answer` have the same words."""
    return {word.lower() for word in _WORDS.findall(name)}


def label_of(baseline: Baseline) -> Label | None:
    """The label's column; None if none is found."""
    facts = baseline.facts
    columns = [name for name in _columns(facts.rows[:50]) if name != facts.prompt_column]
    columns = [name for name in columns if any(row.get(name) not in (None, "") for row in facts.rows[:50])]
    sure = [name for name in columns if words_of(name) & SURE and not words_of(name) & ABOUT]
    for name in sure:
        if words_of(name) <= SURE | WITH_SURE:
            return Label(name, True)
    found = _equal_to_answers(baseline, columns)
    if found is not None or sure:
        return found or Label(sure[0], True)
    for name in columns:
        if words_of(name) & LIKELY and not words_of(name) & ABOUT and not _in_prompts(baseline, name):
            return Label(name, True)
    return None


def _in_prompts(baseline: Baseline, column: str) -> bool:
    """Whether prompts contain a column's values, which means that the column is an input."""
    some = [one for one in baseline.sampled[:20] if one.row.get(column) not in (None, "")]
    shown = sum(_value(one.row[column]) in normalized(prompt_text(one)) for one in some)
    return not some or shown >= len(some) / 2


def _equal_to_answers(baseline: Baseline, columns: Sequence[str]) -> Label | None:
    facts = baseline.facts
    full = [one for one in baseline.scored if is_full(one, facts)]
    pairs = [(one.row, answer) for one in full if (answer := model_answer(one)) is not None][:100]
    if len(pairs) < FEW:
        return None
    for name in columns:
        labels = [_value(row.get(name)) for row, _ in pairs]
        same = sum(
            bool(value) and value in _answer_values(answer)
            for value, (_, answer) in zip(labels, pairs, strict=True)
        )
        if same >= ALIKE * len(pairs) and len(set(labels)) > 1:
            return Label(name, False)
    return None


def _columns(rows: Sequence[JsonView]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _value(value: Any) -> str:
    return normalized(value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str))


def _answer_values(text: str) -> set[str]:
    answer = parsed(text)
    whole = json.dumps(dict(answer.fields), sort_keys=True, default=str)
    return {normalized(text), normalized(answer.body), normalized(whole)}


def label_answer(value: Any) -> ParsedAnswer | None:
    """A label as an answer; None if it is empty. The label may be an object, a text that contains one, or a
    plain value."""
    if isinstance(value, Mapping):
        return ParsedAnswer("", "", "object", tuple(value.items()), "", "") if value else None
    if isinstance(value, str):
        return parsed(value) if value.strip() else None
    if isinstance(value, bool | int | float | list):
        text = json.dumps(value, default=str)
        return ParsedAnswer("", "", "text", (("", text),), "", "")
    return None


def fields_of(value: Any) -> list[str]:
    """Names of a label's fields; empty for a plain value."""
    answer = label_answer(value)
    return [] if answer is None else [key for key, _ in answer.fields if key]


def common(values: Sequence[Any]) -> tuple[str, int] | None:
    """The most frequent label, and how often it occurs; None if there are no labels."""
    found = Counter(folded(written(value)) for value in values if value not in (None, ""))
    return found.most_common(1)[0] if found else None


def tags_of_answers(prompt: str) -> list[str]:
    """Tags that a prompt names. Tags whose names suggest an answer come first."""
    return sorted(tags_in(prompt), key=lambda tag: not words_of(tag) & ANSWERING)


def writings(value: Any, prompt: str, full: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(name, text) of the forms in which a label may be written as an answer.

    The prompt's tags come first. The tags of full-scoring answers, the form without a tag, and usual tags
    follow.

    Args:
        value: the label.
        full: answers that scored full.
    """
    answer = label_answer(value)
    if answer is None:
        return
    tags = [f"<{tag}>" for tag in tags_of_answers(prompt)]
    tags += [f"<{found.tag}>" for text in full if (found := parsed(text)).tag]
    tags += ["bare", *(f"<{tag}>" for tag in USUAL_TAGS)]
    if answer.tag:
        yield "as the label is", answer.text
    for name in dict.fromkeys(tags):
        yield name, answer.with_tag(None if name == "bare" else name[1:-1]).core
