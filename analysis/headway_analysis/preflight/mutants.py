"""Full-scoring answers, each changed in one way. A scorer should refuse some of them, and accept others."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from headway_analysis.preflight.answers import Fields, ParsedAnswer

OTHER_TAG: Final = "other"
MAX_FIELDS: Final = 4
"""The most fields of an answer that are dropped or altered, one at a time."""
WORDS: Final = 5
"""A value with more words counts as prose, which scorers do not compare."""
PROSE: Final = frozenset(
    (
        "reason", "reasoning", "rationale", "explanation", "thought", "thoughts",
        "thinking", "comment", "comments", "note", "notes", "summary",
        "confidence", "analysis", "steps", "message", "justification",
    )
)  # fmt: skip
"""Fields that accompany an answer, and are rightly not judged."""
DIGITS: Final = 300
"""Maximum characters of a number that is altered by arithmetic. A longer number is replaced by 7."""
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Mutant:
    """A changed answer."""

    label: str
    text: str
    harmful: bool
    """Whether the changed answer is wrong. If not, a person would still accept it."""
    rule: str
    """What the scorer does wrong if a harmful mutant scores full, or a harmless one scores nothing."""


def mutants_of(
    answer: ParsedAnswer,
    others: Mapping[str, Sequence[Any]],
    asked_tags: Sequence[str],
    wanted: Collection[str] | None = None,
) -> list[Mutant]:
    """Every mutant of an answer.

    Args:
        others: field -> its values in other answers. An altered field gets one of them.
        asked_tags: tags that the prompt names. Other tags are not changed.
        wanted: fields that the task asks for. None: all fields. A model may add fields that no scorer reads.
    """
    names = judged_fields(answer, wanted)
    harmful = [*_dropped(answer, names), *_altered(answer, names, others), *_tagged(answer, asked_tags)]
    harmful += _doubled(answer, others)
    found = [*harmful, *_harmless(answer)]
    return [mutant for mutant in found if mutant.text.strip() != answer.text.strip() or not mutant.harmful]


def judged_fields(answer: ParsedAnswer, wanted: Collection[str] | None = None) -> list[str]:
    """Names of the fields that a scorer should look at, at most `MAX_FIELDS`."""
    found = [key for key, value in answer.fields if not is_prose(key, value)]
    return [key for key in found if wanted is None or key in wanted][:MAX_FIELDS]


def is_prose(key: str, value: Any) -> bool:
    """Whether a field or argument is prose that scorers ignore, by its name or its number of words."""
    words = len(value.split()) if isinstance(value, str) else 0
    return bool(key) and (key.lower() in PROSE or words > WORDS)


def _dropped(answer: ParsedAnswer, names: Sequence[str]) -> Iterator[Mutant]:
    if answer.opening:
        empty = f"{answer.before}{answer.opening}{answer.closing}{answer.after}"
        yield Mutant("empty wrapper", empty, True, "a wrapper without an answer is accepted")
    if len(answer.fields) < 2:
        yield Mutant("answer dropped", answer.before.strip() or " ", True, "no answer at all is accepted")
        return
    without = {key for key, value in answer.fields if value is None}
    for name in (each for each in names if each not in without):
        left = tuple(pair for pair in answer.fields if pair[0] != name)
        yield Mutant(f"field dropped: {name}", answer.with_fields(left).text, True, f"{name} may be missing")


def _altered(
    answer: ParsedAnswer, names: Sequence[str], others: Mapping[str, Sequence[Any]]
) -> Iterator[Mutant]:
    if len(answer.fields) > 1:
        text = wrong(answer, others).text
        yield Mutant("every value altered", text, True, "an answer that is wrong throughout is accepted")
    for name in names:
        changed = _with(answer.fields, name, others)
        label = f"value altered: {name}" if name else "value altered"
        rule = f"any value of {name} is accepted" if name else "another value is accepted"
        yield Mutant(label, answer.with_fields(changed).text, True, rule)


def _with(fields: Fields, name: str, others: Mapping[str, Sequence[Any]]) -> Fields:
    return tuple(
        (key, altered(value, others.get(key, ())) if key == name else value) for key, value in fields
    )


def wrong(answer: ParsedAnswer, others: Mapping[str, Sequence[Any]]) -> ParsedAnswer:
    """The answer with every field altered."""
    return answer.with_fields(
        tuple((key, altered(value, others.get(key, ()))) for key, value in answer.fields)
    )


def altered(value: Any, others: Sequence[Any] = ()) -> Any:
    """A different value of the same type: one of `others`, if one of them differs."""
    for other in others:
        if type(other) is type(value) and _plain(other) != _plain(value) and not _alike(other, value):
            return other
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return _other_number(value)
    if isinstance(value, str):
        return _other_text(value)
    if isinstance(value, list):
        return [altered(value[0]), *value[1:]] if value else ["none of these"]
    if isinstance(value, dict):
        return {key: altered(inner) for key, inner in value.items()} or {"other": 1}
    return "none of these"


def _other_number(number: int | float) -> int | float:
    """A number so far from the given one that no tolerance accepts it."""
    return number + 7 + abs(number) // 2


def _plain(value: Any) -> str:
    return str(value).strip().casefold()


def _alike(one: Any, other: Any) -> bool:
    """Whether a scorer that searches for a word might accept either text for the other.

    This is so if one text contains the other. It is also so for prose with the same first or last word, such
    as `so it is a refund`.
    """
    if not isinstance(one, str) or not isinstance(other, str):
        return False
    first, second = _plain(one), _plain(other)
    ends = [re.findall(r"\w+", text) or [""] for text in (first, second)]
    prose = max(map(len, ends)) > WORDS
    same = ends[0][0] == ends[1][0] or ends[0][-1] == ends[1][-1]
    return first in second or second in first or (prose and same)


def _other_text(text: str) -> str:
    numbers = list(_NUMBER.finditer(text))
    if numbers:
        last = numbers[-1].group()
        number = int if last.lstrip("-").isdigit() else float
        other = str(_other_number(number(last))) if len(last) <= DIGITS else "7"
        return f"{text[: numbers[-1].start()]}{other}{text[numbers[-1].end() :]}"
    return "none of these"


def _tagged(answer: ParsedAnswer, asked: Sequence[str]) -> Iterator[Mutant]:
    if answer.tag is None or answer.tag not in asked:
        return
    other = answer.with_tag(f"{OTHER_TAG}_{answer.tag}")
    yield Mutant("another tag", other.text, True, f"another tag is accepted than <{answer.tag}>")
    yield Mutant("tag left out", answer.with_tag(None).text, True, f"<{answer.tag}> may be missing")


def _doubled(answer: ParsedAnswer, others: Mapping[str, Sequence[Any]]) -> Iterator[Mutant]:
    rule = "one of two answers is enough"
    bad = wrong(answer, others)
    first = replace(answer, after=f"\n{bad.core}{answer.after}")
    second = replace(answer, before=f"{answer.before}{bad.core}\n")
    yield Mutant("two answers, the right one first", first.text, True, rule)
    yield Mutant("two answers, the right one last", second.text, True, rule)


def _harmless(answer: ParsedAnswer) -> Iterator[Mutant]:
    rule = "white space around the answer is refused"
    yield Mutant("white space around", f"\n{answer.text}\n", False, rule)
    around = f"Here is my answer.\n{answer.text}\nI hope this helps."
    yield Mutant("text around", around, False, "words around the answer are refused")
    if answer.kind == "object":
        body = json.dumps(dict(answer.fields), indent=2, ensure_ascii=False)
        spaced = f"{answer.before}{answer.opening}{body}{answer.closing}{answer.after}"
        yield Mutant("other spacing", spaced, False, "JSON with other spacing is refused")
    if len(answer.fields) > 1:
        turned = answer.with_fields(tuple(reversed(answer.fields)))
        name = "other order" if answer.kind == "object" else "other order of lines"
        yield Mutant(name, turned.text, False, "fields in another order are refused")
    upper = tuple((key, _other_case(value)) for key, value in answer.fields)
    if upper != answer.fields:
        yield Mutant(
            "other case", answer.with_fields(upper).text, False, "values in another case are refused"
        )


def _other_case(value: Any) -> Any:
    return value.swapcase() if isinstance(value, str) else value
