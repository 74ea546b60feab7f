"""Checks that the prompt asks for the labels' fields, and that neither prompt nor tools reveal a label."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from headway_analysis.preflight.answers import parsed
from headway_analysis.preflight.choose import is_full, one_a_row, replay
from headway_analysis.preflight.conversation import excerpt, model_answer, parameters_of, prompt_text, written
from headway_analysis.preflight.definition import MAX_EXAMPLES, Check, Example, Finding
from headway_analysis.preflight.evidence import Baseline, PlayedScript, Sampled, Script
from headway_analysis.preflight.examples import names_it, of_label
from headway_analysis.preflight.labels import (
    ANSWERING,
    Label,
    fields_of,
    label_answer,
    label_of,
    tags_of_answers,
    words_of,
    writings,
)
from headway_analysis.preflight.leaks import in_prompt, in_tool, whole_in_first
from headway_analysis.preflight.shares import share
from headway_analysis.preflight.sources import GUIDE

ID: Final = "prompt-labels"
ROWS: Final = 3
"""The most rows whose labels are tried as answers."""
MAX_WRITINGS: Final = 6
SHOWN: Final = "as the example shows"
READ: Final = 40
"""The most episodes whose prompts and tool results are read, one for each row."""
OFTEN: Final = 0.2
"""A fault counts only if at least this share of rows has it."""


def scripts(baseline: Baseline) -> Sequence[Script]:
    """Scripts that give the label as the answer: in the prompt's tag, and in other tags that a scorer may
    accept."""
    label = label_of(baseline)
    if label is None:
        return ()
    full = _full_answers(baseline)
    found: list[Script] = []
    for at, one in enumerate(one_a_row(baseline, ROWS)):
        value, prompt = one.row.get(label.column), prompt_text(one)
        ways = list(writings(value, prompt, full))[:MAX_WRITINGS]
        found += [replay(ID, f"{name}: {at}", one, answer=text) for name, text in ways]
        if (text := _as_shown(value, prompt, full)) is not None:
            found.append(replay(ID, f"{SHOWN}: {at}", one, answer=text))
    return found


def _as_shown(value: object, prompt: str, full: Sequence[str]) -> str | None:
    """The label as an answer, with only the fields that the prompt shows or names.

    None if the prompt shows all fields or none, or if the label has fewer than two fields.
    """
    fields, answer = fields_of(value), label_answer(value)
    if answer is None or len(fields) < 2:
        return None
    shown = of_label(prompt, fields)
    names = shown.names if shown else {field for field in fields if names_it(prompt, field)}
    less = answer.with_fields(tuple(pair for pair in answer.fields if pair[0] in names))
    if less.fields == answer.fields or not less.fields:
        return None
    tag = next((name[1:-1] for name, _ in writings(value, prompt, full) if name.startswith("<")), None)
    return less.with_tag(tag).core


def _full_answers(baseline: Baseline) -> list[str]:
    full = (one for one in baseline.scored if is_full(one, baseline.facts))
    return [answer for one in full if (answer := model_answer(one))][:20]


@dataclass(frozen=True)
class Fault:
    """One disagreement between prompt and labels, or one place that reveals the label."""

    message: str
    example: Example
    advice: str
    certain: bool = True


def judge(baseline: Baseline, played: Sequence[PlayedScript]) -> Finding:
    """The finding on fields and tags that the prompt omits or shows differently, and on labels that prompt or
    tools reveal."""
    label = label_of(baseline)
    rows = one_a_row(baseline, READ)
    if label is None or not rows:
        observed = (
            "No column of the rows could be recognized as the label." if rows else "No prompt was seen."
        )
        return Finding(ID, "Unknown", observed, threshold=OFTEN, needs=None if rows else 1)
    faults = [
        *_omitted(baseline, rows, played, label),
        *_tags(baseline, rows, played, label),
        *_revealed(rows, label),
    ]
    numbers = (("rows_read", float(len(rows))),)
    if not faults:
        observed = (
            f"Prompts of {len(rows)} rows ask for the fields and tags of label column `{label.column}`, and "
            "do not reveal the label."
        )
        return Finding(ID, "Pass", observed, 0.0, OFTEN, numbers=numbers)
    certain = any(fault.certain for fault in faults)
    return Finding(
        ID,
        "Fail" if certain else "Warn",
        " ".join(fault.message for fault in faults),
        float(len(faults)),
        0.0,
        advice=" ".join(dict.fromkeys(fault.advice for fault in faults)),
        field="spec.data.train",
        examples=tuple(fault.example for fault in faults[:MAX_EXAMPLES]),
        numbers=numbers,
    )


def _omitted(
    baseline: Baseline, rows: Sequence[Sampled], played: Sequence[PlayedScript], label: Label
) -> Iterator[Fault]:
    """A fault for each field that labels have, but that the prompt or its example does not show."""
    threshold = baseline.facts.success_threshold
    misled = _misled(played, threshold)
    if misled is False:
        return
    # If the label scores full in no form, answers may need another form than the label's.
    scores = [one.score for one in played if one.score is not None]
    is_answer = not scores or max(scores) >= threshold
    needless = _needless(baseline, label)
    missing: dict[str, list[tuple[Sampled, str, bool]]] = {}
    for one in rows:
        prompt, fields = prompt_text(one), fields_of(one.row.get(label.column))
        shown = of_label(prompt, fields) if len(fields) > 1 else None
        for field in fields if len(fields) > 1 else ():
            if field in needless:
                continue
            named = names_it(prompt, field) or _asked_by_tool(one, field, fields)
            if not named or (shown is not None and field not in shown.names and not _elided(shown.text)):
                missing.setdefault(field, []).append((one, shown.text if shown else prompt[-600:], named))
    for field, found in missing.items():
        if len(found) < max(1, OFTEN * len(rows)):
            continue
        one, text, named = found[0]
        where = "the example in the prompt omits it" if named else "the prompt does not name it"
        example = Example(
            f"row {one.group.row}: field {field}",
            excerpt(f"label: {written(one.row.get(label.column))}\nprompt: {text}"),
            one.record.episode_id,
        )
        message = f"Labels have the field `{field}`, and {where}, in {len(found)} of {len(rows)} rows."
        certain = (not named and is_answer) or misled is True
        yield Fault(message, example, f"Show `{field}` in the prompt's example.", certain)


def _elided(shown: str) -> bool:
    """Whether an example omits fields on purpose, with dots in the place of a field, and not of a value."""
    return "..." in re.sub(r"""(["'])\.\.\.\1|:\s*\.\.\.""", "", shown)


def _misled(played: Sequence[PlayedScript], threshold: float) -> bool | None:
    """Whether the whole label scores full, and the label with only the prompt's fields does not.

    None if this is not known.
    """
    full = {one.script.label for one in played if one.score is not None and one.score >= threshold}
    shown = {one.script.label for one in played if one.script.label.startswith(SHOWN)}
    return not full & shown if shown and full else None


def _asked_by_tool(one: Sampled, field: str, fields: Sequence[str]) -> bool:
    """Whether a tool's parameters ask for the answer, including this field."""
    taken = [set((parameters_of(tool).get("properties") or {}).keys()) for tool in one.tools]
    return any(field in names and len(names & set(fields)) >= len(fields) / 2 for names in taken)


def _needless(baseline: Baseline, label: Label) -> set[str]:
    """Fields of labels that the full score does not need, because some full-scoring answer lacks them."""
    found: set[str] = set()
    for one in baseline.scored:
        if is_full(one, baseline.facts) and (answer := model_answer(one)):
            found |= set(fields_of(one.row.get(label.column))) - {key for key, _ in parsed(answer).fields}
    return found


def _tags(
    baseline: Baseline, rows: Sequence[Sampled], played: Sequence[PlayedScript], label: Label
) -> Iterator[Fault]:
    """A fault if the label scores full in another tag than the prompt's, but not in the prompt's tag."""
    by_row: dict[str, dict[str, PlayedScript]] = {}
    for one in played:
        name, _, at = one.script.label.rpartition(": ")
        if one.score is not None:
            by_row.setdefault(at, {})[name] = one
    prompts = {one.record.episode_id: prompt_text(one) for one in rows}
    threshold = baseline.facts.success_threshold
    for runs in by_row.values():
        full = [name for name, run in runs.items() if (run.score or 0.0) >= threshold and name != SHOWN]
        like = next(iter(runs.values())).script.like or ""
        tags = tags_of_answers(prompts.get(like, ""))
        shown = [f"<{tag}>" for tag in tags] or ["bare"]
        if not full or set(shown) & set(full) or "as the label is" in full:
            continue
        # The prompt's tags may only mark its inputs. Then it asks for an answer without a tag.
        if full != ["bare"] or (tags and words_of(tags[0]) & ANSWERING):
            ours, theirs = runs.get(shown[0]), runs[full[0]]
            text = (
                f"taken:\n{theirs.script.answer}\nrefused, as the prompt shows "
                f"it:\n{ours.script.answer if ours else ''}"
            )
            message = (
                f"The label scores full {_way(full[0])}, and not {_way(shown[0])}, as the prompt shows it."
            )
            advice = f"Ask in the prompt for an answer {_way(full[0])}."
            yield Fault(message, Example("another tag", excerpt(text), like), advice)
            return
    yield from _tags_of_labels(rows, label)


def _way(name: str) -> str:
    return "without a tag" if name == "bare" else f"in {name}"


def _tags_of_labels(rows: Sequence[Sampled], label: Label) -> Iterator[Fault]:
    """A fault if labels are in a tag that the prompt does not name."""
    for one in rows:
        answer = label_answer(one.row.get(label.column))
        tags = tags_of_answers(prompt_text(one))
        if answer is None or answer.tag is None or not tags or answer.tag in tags:
            continue
        text = f"label: {answer.text}\nprompt: <{tags[0]}>"
        message = f"Labels are in <{answer.tag}>, but the prompt shows <{tags[0]}>."
        advice = f"Ask in the prompt for <{answer.tag}>."
        yield Fault(message, Example(f"row {one.group.row}: another tag", excerpt(text)), advice)
        return


def _in_others(one: Sampled, text: str, rows: Sequence[Sampled], label: Label) -> bool:
    """Whether prompts of rows with other labels have the same text too, or no row has another label.

    In both cases the text does not reveal the label.
    """
    value = written(one.row.get(label.column))
    others = [other for other in rows if written(other.row.get(label.column)) != value]
    return not others or any(text in prompt_text(other) for other in others)


def _revealed(rows: Sequence[Sampled], label: Label) -> Iterator[Fault]:
    """Faults if the prompt or a tool's result reveals the label."""
    prompts = [(one, text) for one in rows if (text := in_prompt(one, label)) is not None]
    prompts = [(one, text) for one, text in prompts if not _in_others(one, text, rows, label)]
    if prompts and len(prompts) >= OFTEN * len(rows):
        one, text = prompts[0]
        message = f"The prompt contains the label in {share(len(prompts), len(rows))} rows."
        example = Example(
            f"row {one.group.row}: the prompt contains the label", excerpt(text), one.record.episode_id
        )
        yield Fault(message, example, "Take the label out of the prompt.")
    named = [(one, found) for one in rows if (found := in_tool(one, label)) is not None]
    calling = [one for one in rows if one.results]
    if named and len(named) >= OFTEN * len(calling):
        one, (result, field) = named[0]
        message = (
            f"Tool `{result.name}` returns the label as `{field}`, in {share(len(named), len(calling))} rows."
        )
        example = Example(
            f"row {one.group.row}: {result.name}", excerpt(result.content), one.record.episode_id
        )
        yield Fault(message, example, f"Take `{field}` out of what `{result.name}` returns.")
        return
    whole = [(one, first) for one in calling if (first := whole_in_first(one, label)) is not None]
    several = [one for one in calling if len(one.tools) > 1]
    if whole and several and len(whole) >= 0.5 * len(calling):
        one, first = whole[0]
        message = f"The first call, of `{first.name}`, returns every field of the label."
        example = Example(f"row {one.group.row}: {first.name}", excerpt(first.content), one.record.episode_id)
        advice = f"Remove from `{first.name}` what the agent should find out."
        yield Fault(message, example, advice, certain=False)


CHECK: Final = Check(
    id=ID,
    meaning="Prompt and labels disagree, or the label is given away.",
    number=f"Number of faults on up to {READ} rows. In one fault, the prompt or its example omits a field "
    "of the label. In another, a label scores full only in a tag that the prompt does not name. In "
    "a third, the label is in the prompt, or in a tool's result, in a field of the label's name.",
    threshold=f"Fails if a fault is found in {OFTEN:.0%} of the rows or more. Warns if the prompt names a "
    "field and only its example omits it. Warns if the first of several tools that is called "
    "returns the whole label. Unknown if no column is the label.",
    reason="A model cannot learn what the prompt does not ask for, and need not learn a label that it can "
    "read. A field that the full score does not need is not a fault.",
    source=f"{GUIDE}: an example in the prompt lacked a field of the data. It also used another tag.",
    advice="Write the example answer in the prompt as the labels are written, and keep labels out of what "
    "the agent sees.",
    judge=judge,
    scripts=scripts,
    needs_model=False,
)
