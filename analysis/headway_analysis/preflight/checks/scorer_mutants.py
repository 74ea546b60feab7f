"""Changes full-scoring answers, and finds which changed answers still score full."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headway_analysis.preflight.answers import parsed, tags_in
from headway_analysis.preflight.call_mutants import CallMutant, call_mutants
from headway_analysis.preflight.checks.foothold import RARELY
from headway_analysis.preflight.choose import is_full, one_a_row, replay, silenced, succeeds, varied
from headway_analysis.preflight.conversation import (
    calls_of,
    excerpt,
    model_answer,
    prompt_text,
    results_text,
    written,
)
from headway_analysis.preflight.definition import MAX_EXAMPLES, Check, Example, Finding
from headway_analysis.preflight.evidence import Baseline, PlayedScript, Sampled, Script
from headway_analysis.preflight.examples import names_it
from headway_analysis.preflight.labels import Label, fields_of, label_of, writings
from headway_analysis.preflight.mutants import WORDS, Mutant, mutants_of
from headway_analysis.preflight.shares import enough_without, share
from headway_analysis.preflight.sources import EXACT, GUIDE

ID: Final = "scorer-mutants"
ANSWERS: Final = 3
"""The most full-scoring answers that are changed."""
ENOUGH: Final = enough_without(RARELY)
"""Episodes among which a model with a foothold almost surely has a success."""
MAX_OTHERS: Final = 200
"""The most full-scoring answers from which values are taken."""
CONTROL: Final = "unchanged"
SILENT: Final = "calls with an empty answer"
"""Label of the control script with the episode's calls and an empty answer. If it scores full, the task is
judged by its calls. Then the calls are changed, and not the answer."""
ALWAYS_MEANT: Final = ("other spacing", "other order")
"""Harmless changes of a JSON object, which no scorer has a reason to refuse."""
OFTEN: Final = 0.05
"""Refusing a harmless change is costly if it makes at least this share of the baseline's answers fail."""
ALONE: Final = re.compile(r"\bnothing (?:but|else)\b|\bno (?:other|further|extra) (?:text|words?)\b", re.I)
"""Matches a prompt that asks for an answer without words around it."""
ALTERED: Final = "value altered"
"""Label of the mutant with another value, for an answer without named fields."""
BOTH: Final = ("two answers, the right one first", "two answers, the right one last")


def scripts(baseline: Baseline) -> Sequence[Script]:
    """Scripts with each mutant of some full-scoring answers, and with the unchanged answers as controls."""
    found: list[Script] = []
    for number, (one, text, mutants) in enumerate(_changed(baseline)):
        found.append(replay(ID, f"{CONTROL}: {number}", one, answer=text))
        found += [replay(ID, f"{each.label}: {number}", one, answer=each.text) for each in mutants]
        if (silent := silenced(ID, f"{SILENT}: {number}", one)) is not None:
            found.append(silent)
            changed = call_mutants(calls_of(one))
            found += [replay(ID, f"{each.label}: {number}", one, calls=each.calls) for each in changed]
    return found


def _changed(baseline: Baseline) -> Iterator[tuple[Sampled, str, list[Mutant]]]:
    """Episodes with an answer and its mutants. If no baseline answer scores full, answers are made from
    labels."""
    full = [one for one in baseline.scored if is_full(one, baseline.facts) and model_answer(one)]
    label = label_of(baseline)
    labelled_full = [(one, _label_text(one, label)) for one in full[:MAX_OTHERS]]
    taken = [(one, model_answer(one) or "") for one in varied(full, ANSWERS)] or _of_label(baseline, label)
    for one, text in taken:
        prompt, answer = prompt_text(one), parsed(text)
        named = {key for key, _ in answer.fields if not key or names_it(prompt, key)}
        labelled = set(fields_of(one.row.get(label.column))) if full and label is not None else set()
        wanted = {key for key, _ in answer.fields} & (labelled or named)
        own = _label_text(one, label)
        others = _values([other for other, its in labelled_full if own is None or its != own])
        yield one, text, mutants_of(answer, others, tags_in(prompt), wanted or None)


def _label_text(one: Sampled, label: Label | None) -> str | None:
    """The label of an episode's row as text. Rows with equal labels may share right answers."""
    return None if label is None else written(one.row.get(label.column))


def _of_label(baseline: Baseline, label: Label | None) -> list[tuple[Sampled, str]]:
    rows = one_a_row(baseline, 1)
    if label is None or not rows:
        return []
    ways = writings(rows[0].row.get(label.column), prompt_text(rows[0]), ())
    return [(rows[0], text) for _, text in ways][:ANSWERS]


def _values(full: Sequence[Sampled]) -> Mapping[str, list[Any]]:
    """Field -> its different values in full-scoring answers."""
    found: dict[str, list[Any]] = {}
    for one in full[:100]:
        for key, value in parsed(model_answer(one) or "").fields:
            values = found.setdefault(key, [])
            if value not in values:
                values.append(value)
    return found


@dataclass(frozen=True)
class Tried:
    """One mutant, and how reward and external score judged it."""

    mutant: Mutant | CallMutant
    played: PlayedScript
    unchanged: PlayedScript
    by_reward: bool
    """Whether the mutant is paid as much as the unchanged answer."""
    by_score: bool
    """Whether the mutant is a success by the external score."""

    @property
    def calls(self) -> bool:
        """Whether the mutant changes tool calls, and not the answer."""
        return isinstance(self.mutant, CallMutant)

    @property
    def full(self) -> bool:
        """Whether reward or external score accepts the mutant as a right answer."""
        return self.by_reward or self.by_score

    @property
    def who(self) -> str:
        """In words, what accepts the mutant as a right answer: the reward, the external score, or both."""
        both = "reward and score" if self.by_reward and self.by_score else None
        return both or ("the reward" if self.by_reward else "the external score")


def judge(baseline: Baseline, played: Sequence[PlayedScript]) -> Finding:
    """The finding on harmful mutants that score full, and on harmless mutants that are refused."""
    tried = [*_tried(baseline, played)]
    if not tried:
        observed = "No answer with the full score could be played again."
        succeeds = any(is_full(one, baseline.facts) for one in baseline.scored)
        return Finding(ID, "Unknown", observed, threshold=0.0, needs=None if succeeds else ENOUGH)
    harmful = [one for one in tried if one.mutant.harmful]
    taken = _sure(_without_half(one for one in harmful if one.full and not one.calls))
    taken += _nothing_judged([one for one in harmful if one.calls])
    refused = [one for one in tried if not one.mutant.harmful and not one.by_score]
    part = share(len(taken), len(harmful))
    numbers = _numbers(tried)
    ends = (part.value, 0.0, part.low, part.high)
    strict = [one for one in refused if _costs(one.mutant, baseline)]
    if taken:
        rules = list(dict.fromkeys(f"{one.mutant.rule} ({one.who})" for one in taken))
        observed = f"{part} wrong answers still get the full score: {'; '.join(rules[:6])}."
        advice = (
            "Compare every field exactly, in the one tag that the prompt asks for, and refuse a "
            "second answer."
        )
        shown = _examples(taken)
        return Finding(ID, "Fail", observed, *ends, advice, ENTRY, examples=shown, numbers=numbers)
    if strict:
        rules = list(dict.fromkeys(one.mutant.rule for one in strict))
        observed = f"Every wrong answer is refused, but right ones are too: {'; '.join(rules)}."
        advice = "Accept an answer that a person would accept, or say in the prompt what is refused."
        shown = _examples(strict)
        return Finding(ID, "Warn", observed, *ends, advice, ENTRY, examples=shown, numbers=numbers)
    observed = f"All {len(harmful)} wrong answers are refused."
    if any(one.calls for one in tried):
        full = list(dict.fromkeys(one.mutant.label for one in harmful if one.full))
        observed = "The task is judged by its calls, and wrong calls are refused"
        observed = f"{observed}, except for: {'; '.join(full[:6])}." if full else f"{observed}."
    if baseline.facts.relative:
        return Finding(ID, "Unknown", f"{observed} {RELATIVE}", *ends, numbers=numbers)
    return Finding(ID, "Pass", observed, *ends, numbers=numbers)


RELATIVE: Final = "Their reward is not known: group_reward compares them with their group."
ENTRY: Final = "spec.environment.entrypoint"


def _tried(baseline: Baseline, played: Sequence[PlayedScript]) -> Iterator[Tried]:
    runs = {one.script.label: one for one in played if one.reward is not None and one.score is not None}
    facts = baseline.facts
    for number, (one, _, mutants) in enumerate(_changed(baseline)):
        control = runs.get(f"{CONTROL}: {number}")
        if control is None or not succeeds(control, facts):
            continue
        paid = _is_paid(control, baseline)
        silent = runs.get(f"{SILENT}: {number}")
        by_calls = silent is not None and succeeds(silent, facts)
        for mutant in call_mutants(calls_of(one)) if by_calls else mutants:
            run = runs.get(f"{mutant.label}: {number}")
            if run is not None:
                by_reward = paid and (run.reward or 0.0) >= (control.reward or 0.0) - 1e-9
                yield Tried(mutant, run, control, by_reward, succeeds(run, facts))


def _is_paid(control: PlayedScript, baseline: Baseline) -> bool:
    """Whether the unchanged answer earns more than the lowest reward. If not, a mutant's equal reward is not
    evidence. With `group_reward`, the reward of a script is not evidence either."""
    if baseline.facts.relative:
        return False
    least = min((one.record.reward or 0.0 for one in baseline.scored), default=0.0)
    return (control.reward or 0.0) > min(least, baseline.facts.reward_range[0]) + 1e-9


def _without_half(taken: Iterator[Tried]) -> list[Tried]:
    """The accepted mutants, without double answers that pass in only one order.

    A scorer may legitimately count always the first answer, or always the last.
    """
    found = list(taken)
    labels = {(one.mutant.label, one.unchanged.script.label) for one in found}
    return [
        one
        for one in found
        if one.mutant.label not in BOTH
        or all((label, one.unchanged.script.label) in labels for label in BOTH)
    ]


def _sure(taken: list[Tried]) -> list[Tried]:
    """The accepted mutants, without altered prose if that passes for only one answer.

    Words from another row's answer may be right by chance.
    """
    by_chance = {one.unchanged.script.label for one in taken if one.mutant.label == ALTERED and _prose(one)}
    if len(by_chance) != 1:
        return taken
    return [
        one
        for one in taken
        if one.unchanged.script.label not in by_chance or one.mutant.label not in (ALTERED, *BOTH)
    ]


def _nothing_judged(tried: list[Tried]) -> list[Tried]:
    """Mutants of episodes in which every changed call scores full. If only some calls do, these may have been
    needless."""
    refused = {one.unchanged.script.label for one in tried if not one.full}
    return [one for one in tried if one.unchanged.script.label not in refused]


def _prose(one: Tried) -> bool:
    return len((one.unchanged.script.answer or "").split()) > WORDS


def _costs(mutant: Mutant | CallMutant, baseline: Baseline) -> bool:
    """Whether refusing a harmless change costs successes, because failing answers of the base model have the
    change."""
    if mutant.label in ALWAYS_MEANT:
        return True
    answers = [(one, answer) for one in baseline.scored if (answer := model_answer(one))]
    failing = [(one, answer) for one, answer in answers if not is_full(one, baseline.facts)]
    if mutant.label == "text around":
        if any(ALONE.search(prompt_text(one)) for one in baseline.scored[:1]):
            return False
        so = sum(parsed(answer).wordy for _, answer in failing)
    elif mutant.label == "white space around":
        so = sum(answer != answer.strip() for _, answer in failing)
    else:
        full = [(one.group.row, answer) for one, answer in answers if is_full(one, baseline.facts)]
        folded = {(row, answer.casefold()) for row, answer in full}
        pairs = [(one.group.row, answer) for one, answer in failing]
        so = sum((row, answer.casefold()) in folded and (row, answer) not in full for row, answer in pairs)
    return so > 1 and so >= OFTEN * len(answers)


def _numbers(tried: Sequence[Tried]) -> tuple[tuple[str, float], ...]:
    names = list(dict.fromkeys(one.mutant.label for one in tried))
    found = []
    for name in names:
        same = [one for one in tried if one.mutant.label == name]
        found.append((f"full score: {name}", sum(one.full for one in same) / len(same)))
    return tuple(found)


def _examples(found: Sequence[Tried]) -> tuple[Example, ...]:
    by_rule = {one.mutant.rule: one for one in reversed(found)}
    shown = [one for one in found if by_rule[one.mutant.rule] is one]
    return tuple(map(_example, shown[:MAX_EXAMPLES]))


def _example(one: Tried) -> Example:
    text = (
        f"right: reward {one.unchanged.reward:g}, score "
        f"{one.unchanged.score:g}\n{_shown(one, one.unchanged)}\n"
        f"changed: reward {one.played.reward:g}, score {one.played.score:g}\n{_shown(one, one.played)}"
    )
    return Example(one.mutant.label, excerpt(text), one.played.script.like)


def _shown(one: Tried, run: PlayedScript) -> str:
    return results_text(run.results) if one.calls else run.script.answer or ""


CHECK: Final = Check(
    id=ID,
    meaning="Wrong answers get the full score, or right ones do not.",
    number=f"Up to {ANSWERS} answers with the full score are changed and played again. Harmful changes drop "
    "a field, alter a value, write another tag or none, or give two answers. Harmless changes add "
    "words or white space around the answer, or change order, case or spacing. If calls get the "
    "full score with an empty answer, the calls are changed instead: the last call is left out, and "
    "arguments are altered. The number is the share of harmful changes that reward or external "
    "score still accept.",
    threshold="Fails if any harmful change of an answer gets the full score, or if every changed call of "
    "one episode does. Warns if JSON in other spacing or order is refused. Warns if another "
    f"harmless change is refused, and {OFTEN:.0%} of the base model's answers fail with it. "
    "Unknown if no answer scores full when it is played again. If group_reward pays, only the "
    "external score is asked: the check is Unknown if it refuses every harmful change.",
    reason="A model under training soon writes what a scorer accepts by mistake. If an "
    "episode has two answers, always count the first, or always the last, but never whichever is right.",
    source=f"{GUIDE}: a parser more lenient than the evaluation is a hack. {EXACT}.",
    advice="Compare every field exactly, in one tag, once.",
    judge=judge,
    scripts=scripts,
    needs_model=False,
)
