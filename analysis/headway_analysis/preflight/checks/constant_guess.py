"""Measures the score of answers that need no work."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Final

from headway_analysis.measures.tries import text_of
from headway_analysis.preflight.arguments import random_call
from headway_analysis.preflight.choose import is_full, one_a_row, replay, silenced, succeeds
from headway_analysis.preflight.conversation import (
    excerpt,
    folded,
    model_answer,
    prompt_messages,
    results_text,
)
from headway_analysis.preflight.definition import MAX_EXAMPLES, Check, Example, Finding
from headway_analysis.preflight.evidence import Baseline, Call, PlayedScript, Sampled, Script
from headway_analysis.preflight.labels import Label, common, label_of, writings
from headway_analysis.preflight.shares import Share, share
from headway_analysis.preflight.sources import EXACT, GUIDE
from headway_api.document import JsonView

ID: Final = "constant-guess"
ROWS: Final = 16
"""Rows on which the most frequent answer is tried."""
FEW_ROWS: Final = 8
"""Rows on which every other guess is tried."""
CALLS: Final = 3
OFTEN: Final = 0.6
"""The check fails if the most frequent answer has at least this success share, or a label this frequency."""
SURELY: Final = 0.45
"""For such a failure, the interval's lower bound must also exceed this. A fair coin, tossed 16 times, meets
both conditions in one of 26 trials."""
EVER: Final = 0.05
"""Any other guess fails if its success share is surely above this."""
PAID: Final = 0.5
"""A guess counts as paid if all its rewards are at least this share of the way from the lowest reward to the
highest."""
CALLS_PAID: Final = 0.1
"""Calls count as paid if they add at least this share of the rewards' span to an empty answer's reward."""
ENOUGH: Final = 8
"""With fewer rows, the check gives no verdict."""
FREQUENT: Final = "most frequent answer"
SILENT: Final = "calls with an empty answer"
"""The control script for the most frequent answer: if it scores full on a row, the row's answer is not
judged."""
EMPTY: Final = "empty answer"
CALLING: Final = "random tool calls"
ORACLE: Final = "oracle"


def scripts(baseline: Baseline) -> Sequence[Script]:
    """Scripts that try each guess on some rows. The most frequent answer follows the calls of the row's best
    episode."""
    found: list[Script] = []
    guess = _frequent(baseline)
    label = label_of(baseline)
    rows = one_a_row(baseline, ROWS)
    for at, one in enumerate(rows):
        if guess:
            found.append(replay(ID, f"{FREQUENT}: {at}", one, answer=guess))
            if (silent := silenced(ID, f"{SILENT}: {at}", one)) is not None:
                found.append(silent)
    for at, one in enumerate(rows[:FEW_ROWS]):
        prompt = "\n".join(map(text_of, prompt_messages(one)))
        found.append(replay(ID, f"{EMPTY}: {at}", one, answer="", calls=()))
        found.append(replay(ID, f"prompt repeated: {at}", one, answer=prompt, calls=()))
        if one.tools:
            calls = _random(one.tools, f"{baseline.facts.seed}/{at}")
            found.append(replay(ID, f"{CALLING}: {at}", one, answer="", calls=calls))
        if label is not None:
            found += _oracle(baseline, label, one, at)
    return found


def _frequent(baseline: Baseline) -> str:
    """The answer that the baseline gave most often."""
    answers = [answer for one in baseline.scored if (answer := model_answer(one))]
    counts = Counter(map(folded, answers))
    if not counts:
        return ""
    commonest = max(counts, key=lambda text: (counts[text], text))
    return next(answer for answer in answers if folded(answer) == commonest)


def _oracle(baseline: Baseline, label: Label, one: Sampled, at: int) -> Iterator[Script]:
    """Replays of the row's best episode: its calls, and then the label as the answer."""
    full = [answer for other in baseline.scored[:200] if (answer := model_answer(other))]
    prompt = "\n".join(text_of(message) for message in prompt_messages(one))
    for name, text in list(writings(one.row.get(label.column), prompt, full[:20]))[:2]:
        yield replay(ID, f"{ORACLE}, {name}: {at}", one, answer=text)


def _random(tools: Sequence[JsonView], seed: str) -> list[Call]:
    drawn = random.Random(seed)
    return [random_call(drawn.choice(list(tools)), drawn) for _ in range(CALLS)]


@dataclass(frozen=True)
class Guess:
    """The result of one guess."""

    name: str
    success: Share
    reward: float
    """Mean reward."""
    rewards: Sequence[float]
    shown: PlayedScript


def judge(baseline: Baseline, played: Sequence[PlayedScript]) -> Finding:
    """The finding on how often guesses succeed, and on how their rewards compare with the base model's."""
    unjudged = _unjudged(baseline, played)
    guesses = [*_guesses(baseline, [one for one in played if one.script.label not in unjudged])]
    label = label_of(baseline)
    majority = _majority(baseline, label)
    tried = [guess for guess in guesses if not guess.name.startswith(ORACLE)]
    if not tried and majority is None:
        return Finding(ID, "Unknown", "No guess could be tried.", threshold=OFTEN, needs=ENOUGH)
    failed = [guess for guess in tried if _scores(guess) or _earns(guess, baseline)]
    numbers = [(f"success of {guess.name}", guess.success.value) for guess in guesses]
    if not baseline.facts.relative:
        numbers += [(f"reward of {guess.name}", guess.reward) for guess in guesses]
    if not baseline.facts.scripted:
        good = [is_full(one, baseline.facts) for one in baseline.scored]
        numbers.append(("success of the baseline episodes", sum(good) / max(1, len(good))))
    if majority is not None:
        numbers.append(("share of the most frequent label", majority.value))
    common_label = majority is not None and _too_common(majority)
    if failed or common_label:
        paid = not baseline.facts.relative
        return _failed(failed, majority if common_label else None, label, tuple(numbers), paid=paid)
    best = max((guess.success for guess in tried), key=lambda each: each.value, default=share(0, 0))
    observed = f"The best guess without work succeeds in {best}."
    ends = (best.value, OFTEN, best.low, best.high)
    if _calls_are_paid(guesses, baseline):
        observed = f"{observed} Random tool calls add to the reward of an empty answer."
        advice = "Pay only for the answer: if calls are paid, an agent calls as much as it can."
        shown = tuple(_example(guess) for guess in tried if guess.name in (CALLING, EMPTY))
        return Finding(ID, "Warn", observed, *ends, advice, ENTRY, examples=shown, numbers=tuple(numbers))
    if unjudged:
        observed = (
            f"{observed} On {len(unjudged)} rows the calls alone get the full score, so no answer was tried."
        )
    if baseline.facts.relative:
        observed = f"{observed} {RELATIVE}"
        return Finding(ID, "Unknown", observed, *ends, numbers=tuple(numbers))
    if any(len(guess.rewards) + len(unjudged) < ENOUGH for guess in tried if guess.name == FREQUENT):
        return Finding(ID, "Unknown", observed, *ends, needs=ENOUGH, numbers=tuple(numbers))
    return Finding(ID, "Pass", observed, *ends, numbers=tuple(numbers))


ENTRY: Final = "spec.environment.entrypoint"
RELATIVE: Final = "The reward of a guess is not known: group_reward compares it with its group."


def _unjudged(baseline: Baseline, played: Sequence[PlayedScript]) -> set[str]:
    """Labels of the scripts with the most frequent answer, for rows whose calls alone score full."""
    labels = (one.script.label for one in played if succeeds(one, baseline.facts))
    return {
        f"{FREQUENT}: {label.removeprefix(SILENT + ': ')}" for label in labels if label.startswith(SILENT)
    }


def _guesses(baseline: Baseline, played: Sequence[PlayedScript]) -> Iterator[Guess]:
    by_name: dict[str, list[PlayedScript]] = {}
    for one in played:
        control = one.script.label.startswith(SILENT)
        if one.reward is not None and one.score is not None and not control:
            by_name.setdefault(one.script.label.rpartition(": ")[0], []).append(one)
    for name, found in by_name.items():
        good = [(one.score or 0.0) >= baseline.facts.success_threshold for one in found]
        rewards = [one.reward or 0.0 for one in found]
        best = max(found, key=lambda one: (one.score or 0.0, one.reward or 0.0))
        yield Guess(name, share(sum(good), len(good)), fsum(rewards) / len(rewards), rewards, best)


def _majority(baseline: Baseline, label: Label | None) -> Share | None:
    """Share of the most frequent label among all rows that have a label."""
    if label is None:
        return None
    values = [row.get(label.column) for row in baseline.facts.rows]
    known = [value for value in values if value not in (None, "")]
    found = common(known)
    return None if found is None or len(known) < ENOUGH else share(found[1], len(known))


def _too_common(part: Share) -> bool:
    return part.value >= OFTEN and part.low > SURELY


def _scores(guess: Guess) -> bool:
    return _too_common(guess.success) if guess.name == FREQUENT else guess.success.low > EVER


def _earns(guess: Guess, baseline: Baseline) -> bool:
    """Whether a guess without content always earns much, and on average no less than the base model."""
    rewards = [one.record.reward or 0.0 for one in baseline.scored]
    few = len(rewards) < 2 or len(guess.rewards) < ENOUGH / 2
    if few or guess.name == FREQUENT or baseline.facts.relative:
        return False
    low, high = min(*rewards, *guess.rewards), max(*rewards, *guess.rewards)
    mean = fsum(rewards) / len(rewards)
    return high > low and guess.reward >= mean and min(guess.rewards) >= low + PAID * (high - low)


def _calls_are_paid(guesses: Sequence[Guess], baseline: Baseline) -> bool:
    by_name = {guess.name: guess for guess in guesses}
    calling, empty = by_name.get(CALLING), by_name.get(EMPTY)
    rewards = [one.record.reward or 0.0 for one in baseline.scored]
    if calling is None or empty is None or baseline.facts.relative:
        return False
    if len(calling.rewards) < ENOUGH / 2 or not rewards:
        return False
    span = max(rewards) - min(*rewards, *empty.rewards)
    return span > 0 and min(calling.rewards) - max(empty.rewards) >= CALLS_PAID * span


def _failed(
    failed: Sequence[Guess],
    majority: Share | None,
    label: Label | None,
    numbers: tuple[tuple[str, float], ...],
    *,
    paid: bool,
) -> Finding:
    """The finding Fail. `paid`: whether the guesses' rewards are those that training would use."""
    parts = [
        f"{guess.name}: success {guess.success}" + (f", reward {guess.reward:.2f}" if paid else "")
        for guess in failed
    ]
    if majority is not None and label is not None:
        parts.append(f"one value of column `{label.column}` is the label of {majority} rows")
    shown = max((guess.success for guess in failed), key=lambda each: each.low, default=majority)
    shown = shown or share(0, 0)
    if majority is not None or any(guess.name == FREQUENT for guess in failed):
        advice = "Balance the rows: one answer for most of them teaches that answer."
        field = "spec.data.train"
    else:
        advice = "Make reward and score give nothing for an answer without content."
        field = ENTRY
    observed = "Answers without work are paid: " + "; ".join(parts) + "."
    examples = tuple(map(_example, failed[:MAX_EXAMPLES]))
    return Finding(
        ID,
        "Fail",
        observed,
        shown.value,
        OFTEN,
        shown.low,
        shown.high,
        advice,
        field,
        examples=examples,
        numbers=numbers,
    )


def _example(guess: Guess) -> Example:
    one = guess.shown
    answer = one.script.answer or "(empty)"
    text = f"reward {one.reward} | score {one.score}\n{results_text(one.results)}\n{answer}"
    return Example(guess.name, excerpt(text), one.script.like)


CHECK: Final = Check(
    id=ID,
    meaning="An answer without work already scores.",
    number=f"Success share of the baseline's most frequent answer on {ROWS} rows. Rows whose calls get the "
    "full score with an empty answer do not count here. Also the success shares of three other "
    f"guesses on {FEW_ROWS} rows: an empty answer, the prompt repeated, and random tool calls. If a "
    "column is the label, also the share of the most frequent label. For comparison, an oracle "
    "answers with the label.",
    threshold=f"Fails if the most frequent answer or label is right in {OFTEN:.0%} or more, surely over "
    f"{SURELY:.0%}. Fails if another guess is surely right in over {EVER:.0%}. Fails if another "
    f"guess always earns {PAID:.0%} of the span of rewards, and on average no less than the base "
    f"model. Warns if random calls add {CALLS_PAID:.0%} of the span to the reward of an empty "
    f"answer. Unknown below {ENOUGH} rows. Also Unknown if group_reward pays, unless the success "
    "share alone makes the check fail.",
    reason=(
        "Training finds the cheapest answer that pays. If that answer is constant, nothing else is learnt."
    ),
    source=f"{GUIDE}: verify that variance is there, and read what the reward pays. {EXACT}.",
    advice="Balance the rows, and pay nothing for an answer without content.",
    judge=judge,
    scripts=scripts,
    needs_model=False,
)
