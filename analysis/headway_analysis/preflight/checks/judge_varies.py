"""Checks how much a judge's answers to the same question vary."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, isfinite
from typing import Any, Final

from headway_analysis.measures.tries import text_of
from headway_analysis.preflight.conversation import excerpt, folded, written
from headway_analysis.preflight.definition import Check, Example, Finding
from headway_analysis.preflight.evidence import AskedTwice, Baseline, JudgeQuestion, PlayedScript, Sampled
from headway_analysis.preflight.shares import Share, enough_without, share
from headway_analysis.preflight.sources import EXACT, GUIDE

ID: Final = "judge-varies"
QUESTIONS: Final = 20
"""The most questions to one judge that are asked again, twice each."""
OFTEN: Final = 0.2
"""The check warns from this share of questions with differing answers on."""
SURELY: Final = 0.05
"""For a warning, the lower bound of that share's interval must exceed this."""
ENOUGH: Final = enough_without(OFTEN)
"""This many questions without a difference show that the share is below `OFTEN`."""
PAIRS: Final = 2
"""The most pairs of differing answers that are shown as evidence."""
MAX_FIELDS: Final = 32
"""The most fields of an answer that are compared, and the most fields whose mean difference is reported."""
NAMED: Final = 120
"""Maximum characters of a field's name."""
LONGEST_NUMBER: Final = 40
"""A text with more characters is not read as a number."""
TEXT: Final = "text"
"""Name of the only field of an answer that is plain text."""


def questions(baseline: Baseline) -> list[JudgeQuestion]:
    """Select the questions to ask again: at most `QUESTIONS` different questions for each judge.

    Questions from the first episode of every row come before those from the second episode of any row.
    """
    found: list[JudgeQuestion] = []
    seen: set[str] = set()
    counts: dict[str, int] = {}
    for one in _over_rows(baseline.sampled):
        for question in one.questions:
            text = written([question.judge, [*question.messages], question.schema])
            if text in seen or counts.get(question.judge, 0) >= QUESTIONS:
                continue
            seen.add(text)
            counts[question.judge] = counts.get(question.judge, 0) + 1
            found.append(question)
    return found


def _over_rows(sampled: Sequence[Sampled]) -> list[Sampled]:
    """The first episode of each row, then the second episode of each row, and so on."""
    rounds: dict[int, int] = {}
    placed = []
    for one in sorted((one for one in sampled if one.questions), key=lambda one: one.record.episode_id):
        at = rounds[one.group.row] = rounds.get(one.group.row, -1) + 1
        placed.append((at, one.group.row, one))
    return [one for *_, one in sorted(placed, key=lambda each: each[:2])]


@dataclass
class _Judge:
    """The result of one judge's pairs of answers."""

    name: str
    pairs: int = 0
    differ: list[AskedTwice] = field(default_factory=list)
    distances: dict[str, list[float]] = field(default_factory=dict)
    """Name of a numeric field -> the difference between both answers, for each question."""

    @property
    def part(self) -> Share:
        return share(len(self.differ), self.pairs)

    @property
    def too_much(self) -> bool:
        return self.part.value >= OFTEN and self.part.low > SURELY

    def add(self, one: AskedTwice) -> None:
        """Compare both answers to a question."""
        first, second = (dict(_fields(answer)) for answer in one.answers)
        self.pairs += 1
        if first != second:
            self.differ.append(one)
        for name in first.keys() & second.keys():
            a, b = first[name], second[name]
            if isinstance(a, float) and isinstance(b, float):
                self.distances.setdefault(name, []).append(abs(a - b))

    @property
    def numbers(self) -> Iterator[tuple[str, float]]:
        yield f"{self.name}: questions asked twice", float(self.pairs)
        yield f"{self.name}: share that differ", self.part.value
        for name, found in sorted(self.distances.items())[:MAX_FIELDS]:
            yield f"{self.name}: mean difference of {name}", fsum(found) / len(found)


def judge(baseline: Baseline, played: Sequence[PlayedScript]) -> Finding:
    """The finding on the share of each judge's questions whose answers differ; the worst judge decides."""
    by_name: dict[str, _Judge] = {}
    failed = [one for one in baseline.asked_twice if len(one.answers) < 2]
    for one in baseline.asked_twice:
        found = by_name.setdefault(one.question.judge, _Judge(one.question.judge))
        if len(one.answers) == 2:
            found.add(one)
    if not any(each.pairs for each in by_name.values()):
        return _unknown(baseline, failed)
    known = sorted(by_name.values(), key=lambda each: (each.part.low, each.part.value, -each.pairs))
    worst = known[-1]
    part, numbers = worst.part, tuple(pair for each in known for pair in each.numbers)
    observed = _summary(worst, len(failed))
    ends = (part.value, OFTEN, part.low, part.high)
    if worst.too_much:
        shown = tuple(map(_example, worst.differ[:PAIRS]))
        where = f"spec.judges[{worst.name}]"
        return Finding(ID, "Warn", observed, *ends, ADVICE, where, examples=shown, numbers=numbers)
    few = min(known, key=lambda each: each.pairs)
    if few.pairs < ENOUGH:
        observed = f"{observed} {few.pairs} questions to judge {few.name} are too few to tell."
        needs = -(-len(baseline.sampled) * ENOUGH // max(1, few.pairs))
        return Finding(ID, "Unknown", observed, *ends, needs=needs, numbers=numbers)
    shown = tuple(map(_example, worst.differ[:PAIRS]))
    return Finding(ID, "Pass", observed, *ends, examples=shown, numbers=numbers)


ADVICE: Final = (
    "Ask for a choice among few values by a schema. Or ask several times and "
    "take the mean, or name a steadier model."
)


def _unknown(baseline: Baseline, failed: Sequence[AskedTwice]) -> Finding:
    if failed:
        observed = f"None of {len(failed)} questions was answered twice: {failed[0].error or 'no answer'}"
        return Finding(
            ID, "Unknown", observed, threshold=OFTEN, field=f"spec.judges[{failed[0].question.judge}]"
        )
    if not baseline.facts.judged:
        return Finding(ID, "Unknown", "No judge was asked: spec.judges is empty.", threshold=OFTEN)
    return Finding(ID, "Unknown", "No baseline episode asked a judge.", threshold=OFTEN)


def _summary(worst: _Judge, failed: int) -> str:
    observed = f"Judge {worst.name} answered {worst.part} questions differently when it was asked again."
    means = [(name, fsum(found) / len(found)) for name, found in sorted(worst.distances.items())]
    if differences := [f"{name} by {mean:.3g}" for name, mean in means if mean][:3]:
        observed = f"{observed} Mean difference: {', '.join(differences)}."
    return f"{observed} {failed} questions were not answered twice." if failed else observed


def _fields(answer: Any) -> Iterator[tuple[str, Any]]:
    """(path, value) of an answer's values: numbers as float, texts with spacing and case normalized."""
    left: list[tuple[str, Any]] = [("", answer)]
    count = 0
    while left and count < MAX_FIELDS:
        path, value = left.pop()
        if isinstance(value, Mapping) and value:
            begun = f"{path}." if path else ""
            left += [(f"{begun}{name}", one) for name, one in reversed([*value.items()])]
            continue
        if isinstance(value, list) and value:
            left += [(f"{path}[{at}]", one) for at, one in reversed([*enumerate(value)])]
            continue
        count += 1
        yield path[:NAMED] or TEXT, _value(value)


def _value(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    number = _number(value)
    return number if number is not None else folded(value) if isinstance(value, str) else written(value)


def _number(value: Any) -> float | None:
    """The value as a number, even if it is a text with a number; None if it is none."""
    if isinstance(value, str) and len(value) > LONGEST_NUMBER:
        return None
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if isfinite(found) else None


def _example(one: AskedTwice) -> Example:
    asked = text_of(one.question.messages[-1]) if one.question.messages else ""
    first, second = (each if isinstance(each, str) else json.dumps(each) for each in one.answers)
    text = f"first: {excerpt(first, 8)}\nsecond: {excerpt(second, 8)}\n\n{asked}"
    return Example(f"judge {one.question.judge}, one question twice", excerpt(text))


CHECK: Final = Check(
    id=ID,
    meaning="A judge answers the same question in two ways.",
    number=f"Each of up to {QUESTIONS} different questions that episodes put to a judge is asked twice "
    "again, without the cache. The number is the share whose two answers differ. Every field is "
    "compared; case and spacing of texts do not count. The result also has the mean difference of "
    "each numeric field. With several judges, the worst one decides. The check's tokens are "
    "billed like those of the judge's other questions.",
    threshold=f"Warns if the share is {OFTEN:.0%} or more, and surely over {SURELY:.0%}; never fails. "
    f"Unknown if no judge was asked, or with fewer than {ENOUGH} questions.",
    reason="A group compares episodes by their reward, and a judge that varies adds luck to it. Larger "
    "groups average such luck out, so the check only warns.",
    source=f"{GUIDE}: run the same instance twice and compare. {EXACT}.",
    advice=ADVICE,
    judge=judge,
)
