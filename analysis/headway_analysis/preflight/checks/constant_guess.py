"""What answers without any work would score."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any, Final

from headway_analysis.overlaps import normalized
from headway_analysis.preflight.choose import one_a_row, replay
from headway_analysis.preflight.conversation import (
    answer_of,
    excerpt,
    function_of,
    parameters_of,
    prompt_messages,
    text_of,
    told,
)
from headway_analysis.preflight.definition import MOST_EXAMPLES, Check, Example, Finding
from headway_analysis.preflight.evidence import Baseline, Call, Json, Played, Sampled, Script
from headway_analysis.preflight.labels import Label, common, label_of, writings
from headway_analysis.preflight.shares import Share, enough_with, share
from headway_analysis.preflight.sources import EXACT, GUIDE

ID: Final = "constant-guess"
ROWS: Final = 16
"""Rows that the most frequent answer is tried on."""
FEW_ROWS: Final = 8
"""Rows that every other guess is tried on."""
CALLS: Final = 3
OFTEN: Final = 0.5
"""Success of the most frequent answer that is too much."""
EVER: Final = 0.05
"""Success of an answer without content that is too much."""
PAID: Final = 0.5
"""Part of the way from the lowest to the highest reward."""
ENOUGH: Final = enough_with(OFTEN)
FREQUENT: Final = "most frequent answer"
ORACLE: Final = "oracle"
WITHOUT: Final = ("empty answer", "prompt repeated", "random tool calls")


def scripts(baseline: Baseline) -> Sequence[Script]:
    """Each guess on some rows."""
    found: list[Script] = []
    guess = _frequent(baseline)
    label = label_of(baseline)
    rows = one_a_row(baseline, ROWS)
    for at, one in enumerate(rows):
        if guess:
            found.append(replay(ID, f"{FREQUENT}: {at}", one, answer=guess, calls=()))
    for at, one in enumerate(rows[:FEW_ROWS]):
        last = next((text_of(m) for m in reversed(prompt_messages(one)) if m.get("role") == "user"), "")
        found.append(replay(ID, f"empty answer: {at}", one, answer="", calls=()))
        found.append(replay(ID, f"prompt repeated: {at}", one, answer=last, calls=()))
        if one.tools:
            calls = _random(one.tools, f"{baseline.facts.seed}/{at}")
            found.append(replay(ID, f"random tool calls: {at}", one, answer=guess or "", calls=calls))
        if label is not None:
            found += _oracle(baseline, label, one, at)
    return found


def _frequent(baseline: Baseline) -> str:
    """The answer that the baseline gave most often."""
    answers = [answer for one in baseline.scored if (answer := answer_of(one))]
    counts = Counter(map(normalized, answers))
    if not counts:
        return ""
    most = max(counts, key=lambda text: (counts[text], text))
    return next(answer for answer in answers if normalized(answer) == most)


def _oracle(baseline: Baseline, label: Label, one: Sampled, at: int) -> Iterator[Script]:
    """The label as an answer, with the calls of the row's best episode."""
    full = [answer for other in baseline.scored[:200] if (answer := answer_of(other))]
    prompt = "\n".join(text_of(message) for message in prompt_messages(one))
    for name, text in list(writings(one.row.get(label.column), prompt, full[:20]))[:2]:
        yield replay(ID, f"{ORACLE}, {name}: {at}", one, answer=text)


def _random(tools: Sequence[Json], seed: str) -> list[Call]:
    drawn = random.Random(seed)
    return [_call(drawn.choice(list(tools)), drawn) for _ in range(CALLS)]


def _call(tool: Json, drawn: random.Random) -> Call:
    schema = parameters_of(tool)
    properties = schema.get("properties") or {}
    required = set(schema.get("required") or ())
    named = {name: _drawn(each, drawn, 3) for name, each in properties.items() if name in required}
    return Call(str(function_of(tool).get("name", "")), named)


def _drawn(schema: Any, drawn: random.Random, depth: int) -> Any:
    """A value that a JSON schema allows."""
    schema = schema if isinstance(schema, Mapping) else {}
    if schema.get("enum"):
        return drawn.choice(list(schema["enum"]))
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind in ("integer", "number"):
        low = schema.get("minimum", 0)
        return drawn.randint(int(low), int(schema.get("maximum", low + 100)))
    if kind == "boolean":
        return drawn.random() < 0.5
    if kind == "array":
        return [_drawn(schema.get("items"), drawn, depth - 1)] if depth else []
    if kind == "object":
        inner = (schema.get("properties") or {}).items() if depth else ()
        return {name: _drawn(each, drawn, depth - 1) for name, each in inner}
    return f"{drawn.randrange(16**6):06x}"


@dataclass(frozen=True)
class Guess:
    """What one guess came to."""

    name: str
    success: Share
    reward: float
    """Mean."""
    rewards: Sequence[float]
    shown: Played


def judge(baseline: Baseline, played: Sequence[Played]) -> Finding:
    """Each guess against the base model, and against what success pays."""
    guesses = [*_guesses(baseline, played)]
    label = label_of(baseline)
    majority = _majority(baseline, label)
    tried = [guess for guess in guesses if not guess.name.startswith(ORACLE)]
    if not tried and majority is None:
        return Finding(ID, "Unknown", "No guess could be tried.", threshold=OFTEN, needs=ENOUGH)
    failed = [guess for guess in tried if _scores(guess) or _earns(guess, baseline)]
    figures = [(f"success of {guess.name}", guess.success.value) for guess in guesses]
    figures += [(f"reward of {guess.name}", guess.reward) for guess in guesses]
    if majority is not None:
        figures.append(("share of the most frequent label", majority.value))
    common_label = majority is not None and majority.low > OFTEN
    if failed or common_label:
        return _failed(failed, majority if common_label else None, label, tuple(figures))
    best = max((guess.success for guess in tried), key=lambda each: each.value, default=share(0, 0))
    saw = f"The best guess without work succeeds in {best}."
    if any(len(guess.rewards) < ENOUGH for guess in tried if guess.name == FREQUENT):
        return Finding(
            ID, "Unknown", saw, best.value, OFTEN, best.low, best.high, needs=ENOUGH, figures=tuple(figures)
        )
    return Finding(ID, "Pass", saw, best.value, OFTEN, best.low, best.high, figures=tuple(figures))


def _guesses(baseline: Baseline, played: Sequence[Played]) -> Iterator[Guess]:
    by_name: dict[str, list[Played]] = {}
    for one in played:
        if one.reward is not None and one.score is not None:
            by_name.setdefault(one.script.label.rpartition(": ")[0], []).append(one)
    for name, found in by_name.items():
        good = [(one.score or 0.0) >= baseline.facts.success_threshold for one in found]
        rewards = [one.reward or 0.0 for one in found]
        best = max(found, key=lambda one: (one.score or 0.0, one.reward or 0.0))
        yield Guess(name, share(sum(good), len(good)), fsum(rewards) / len(rewards), rewards, best)


def _majority(baseline: Baseline, label: Label | None) -> Share | None:
    """How often the most frequent label comes, over all rows that have one."""
    if label is None:
        return None
    values = [row.get(label.column) for row in baseline.facts.rows]
    known = [value for value in values if value not in (None, "")]
    found = common(known)
    return None if found is None or len(known) < ENOUGH else share(found[1], len(known))


def _scores(guess: Guess) -> bool:
    return guess.success.low > (OFTEN if guess.name == FREQUENT else EVER)


def _earns(guess: Guess, baseline: Baseline) -> bool:
    """Whether a guess is paid well, and no worse than the base model."""
    rewards = [one.record.reward or 0.0 for one in baseline.scored]
    if len(rewards) < 2 or len(guess.rewards) < 4:
        return False
    low, high = min(*rewards, baseline.facts.reward_range[0]), max(*rewards, *guess.rewards)
    if guess.name == FREQUENT or high <= low:
        return False
    mean = fsum(rewards) / len(rewards)
    return guess.reward >= mean and min(guess.rewards) >= low + PAID * (high - low)


def _failed(
    failed: Sequence[Guess],
    majority: Share | None,
    label: Label | None,
    figures: tuple[tuple[str, float], ...],
) -> Finding:
    parts = [f"{guess.name}: success {guess.success}, reward {guess.reward:.2f}" for guess in failed]
    if majority is not None and label is not None:
        parts.append(f"one value of column `{label.column}` is the label of {majority} rows")
    shown = max((guess.success for guess in failed), key=lambda each: each.low, default=majority)
    shown = shown or share(0, 0)
    if majority is not None or any(guess.name == FREQUENT for guess in failed):
        advice = "Balance the rows: one answer for most of them teaches that answer."
        field = "spec.data.train"
    else:
        advice = "Have reward and score give nothing for an answer without content."
        field = "spec.environment.entrypoint"
    saw = "Answers without work are paid: " + "; ".join(parts) + "."
    examples = tuple(map(_example, failed[:MOST_EXAMPLES]))
    return Finding(
        ID,
        "Fail",
        saw,
        shown.value,
        OFTEN,
        shown.low,
        shown.high,
        advice,
        field,
        examples=examples,
        figures=figures,
    )


def _example(guess: Guess) -> Example:
    one = guess.shown
    text = f"reward {one.reward} | score {one.score}\n{told(one.results)}\n{one.script.answer or '(empty)'}"
    return Example(guess.name, excerpt(text), one.script.like)


CHECK: Final = Check(
    id=ID,
    meaning="An answer without work scores already.",
    number=f"Success share of the baseline's most frequent answer on {ROWS} rows. On {FEW_ROWS} rows "
    "that of an "
    "empty answer, the prompt repeated, and random tool calls. The share of the most frequent label, where a "
    "column is the label. For comparison an oracle: the label as the answer.",
    threshold="Fails where the most frequent answer or label is surely right in more than "
    f"{OFTEN:.0%}, another "
    f"guess in more than {EVER:.0%}, or where a guess always earns {PAID:.0%} of the rewards' span "
    "and no less "
    f"than the base model. Unknown below {ENOUGH} rows.",
    reason="Training finds the cheapest answer that pays: if it is a constant one, nothing else is learnt.",
    source=f"{GUIDE}: verify that variance is there, and read what the reward pays; {EXACT}.",
    advice="Balance the rows, and pay nothing for an answer without content.",
    judge=judge,
    scripts=scripts,
    needs_model=False,
)
