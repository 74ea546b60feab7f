"""Checks that episodes with a full reward also succeed by the external score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from headway_analysis.preflight.choose import is_full
from headway_analysis.preflight.conversation import answer_of, excerpt
from headway_analysis.preflight.definition import MAX_EXAMPLES, Check, Example, Finding
from headway_analysis.preflight.evidence import Baseline, Facts, PlayedScript, Sampled
from headway_analysis.preflight.shares import Share, enough_without, rank_correlation, ranks, share
from headway_analysis.preflight.sources import EXACT, GUIDE

ID: Final = "scorer-agrees"
PAID: Final = 0.1
"""The largest share of episodes with a full reward that may fail by the external score."""
ENOUGH: Final = enough_without(PAID)
NEAR: Final = 0.95
"""If no episode succeeds, a reward counts as full from this share of the reward's range on."""
SURELY: Final = 2.33
"""Normal quantile of a one-sided error of 1 %."""
EACH: Final = 5
"""Rewards of successes and failures are compared only if there are at least this many of each."""


@dataclass(frozen=True)
class Sides:
    """Episodes sorted by reward and external score."""

    high: list[Sampled]
    """Episodes with a full reward."""
    unearned: list[Sampled]
    """Episodes of `high` that fail by the external score."""
    good: list[Sampled]
    """Episodes that succeed by the external score."""
    bad: list[Sampled]
    """Episodes that fail by the external score."""


def judge(baseline: Baseline, played: Sequence[PlayedScript]) -> Finding:
    """The finding on failures with a full reward, and on whether successes earn more than failures."""
    facts = baseline.facts
    scored = [one for one in baseline.scored if one.record.score is not None]
    if not scored:
        return Finding(ID, "Unknown", "No episode has both reward and score.", threshold=PAID, needs=ENOUGH)
    sides = _sides(scored, facts)
    part = share(len(sides.unearned), len(sides.high))
    correlation = rank_correlation(
        [one.record.reward or 0.0 for one in scored], [one.record.score or 0.0 for one in scored]
    )
    better = _better(sides)
    numbers = _numbers(scored, correlation, better)
    observed = f"{part} episodes with a full reward fail by the external score."
    if correlation is not None:
        observed = f"{observed[:-1]}; rank correlation {correlation:.2f}."
    turned = better is not None and better < -SURELY
    if turned:
        observed = f"Failures surely earn more than successes. {observed}"
    shown = tuple(map(_example, _worst(sides.unearned if sides.unearned else sides.bad)))
    ends = (part.value, PAID, part.low, part.high)
    if part.low > PAID or turned:
        return Finding(
            ID, "Fail", observed, *ends, _advice(part, turned), ENTRY, examples=shown, numbers=numbers
        )
    if len(sides.unearned) > 1 and part.value > PAID:
        return Finding(
            ID, "Warn", observed, *ends, _advice(part, turned), ENTRY, examples=shown, numbers=numbers
        )
    if better is not None and better < 0 and len(sides.good) >= EACH:
        advice = "Success earns no more than failure: read the worst episodes, and align the reward."
        return Finding(ID, "Warn", observed, *ends, advice, ENTRY, examples=shown, numbers=numbers)
    if not sides.high and len(scored) < ENOUGH:
        observed = f"None of {len(scored)} episodes has a full reward: too few to tell."
        return Finding(ID, "Unknown", observed, threshold=PAID, needs=ENOUGH, numbers=numbers)
    return Finding(ID, "Pass", observed, *ends, numbers=numbers)


ENTRY: Final = "spec.environment.entrypoint"


def _advice(part: Share, turned: bool) -> str:
    if turned and part.low <= PAID:
        return "Reverse the reward, or correct the external score: failures earn more than successes."
    return "Make the reward stricter until it pays in full only what the external score counts."


def _sides(scored: Sequence[Sampled], facts: Facts) -> Sides:
    good = [one for one in scored if is_full(one, facts)]
    bad = [one for one in scored if not is_full(one, facts)]
    low, top = facts.reward_range
    full = median(one.record.reward or 0.0 for one in good) if good else low + NEAR * (top - low)
    lowest = min(one.record.reward or 0.0 for one in scored)
    # If successes earn the lowest reward, every reward would count as full.
    full = full if full > lowest else low + NEAR * (top - low)
    high = [one for one in scored if (one.record.reward or 0.0) >= full - 1e-9]
    return Sides(high, [one for one in high if not is_full(one, facts)], good, bad)


def _better(sides: Sides) -> float | None:
    """Mann and Whitney's (1947) standardized statistic: positive if successes earn more than failures.

    None if there are too few of either, or if all rewards are equal.
    """
    first, second = len(sides.good), len(sides.bad)
    if min(first, second) < EACH:
        return None
    rewards = [one.record.reward or 0.0 for one in (*sides.good, *sides.bad)]
    if max(rewards) == min(rewards):
        return None
    total = sum(ranks(rewards)[:first]) - first * (first + 1) / 2
    return (total - first * second / 2) / math.sqrt(first * second * (first + second + 1) / 12)


def _numbers(
    scored: Sequence[Sampled], correlation: float | None, better: float | None
) -> tuple[tuple[str, float], ...]:
    found = [
        ("mean_reward", math.fsum(one.record.reward or 0.0 for one in scored) / len(scored)),
        ("mean_external_score", math.fsum(one.record.score or 0.0 for one in scored) / len(scored)),
    ]
    if correlation is not None:
        found.append(("rank_correlation", correlation))
    if better is not None:
        found.append(("mann_whitney_z", better))
    return tuple(found)


def _worst(unearned: Sequence[Sampled]) -> list[Sampled]:
    def gap(one: Sampled) -> tuple[float, str]:
        return ((one.record.reward or 0.0) - (one.record.score or 0.0), one.record.episode_id)

    return sorted(unearned, key=gap, reverse=True)[:MAX_EXAMPLES]


def _example(one: Sampled) -> Example:
    record = one.record
    text = f"reward {record.reward:g} | score {record.score:g}\n{answer_of(one) or '(no answer)'}"
    return Example(f"row {one.group.row}: high reward, but not a success", excerpt(text), record.episode_id)


CHECK: Final = Check(
    id=ID,
    meaning="The reward pays in full for episodes that fail by the external score.",
    number="Share of the episodes with a full reward that fail by the external score. A full reward is the "
    f"median reward of successes. If there are none, it is {NEAR:.0%} of the reward's range. The "
    "result also has the rank correlation of reward and score (Spearman 1904).",
    threshold=f"Fails if the share is surely above {PAID:.0%}, or failures surely earn more than successes "
    f"(Mann and Whitney 1947, 1 %). Warns if the share is above {PAID:.0%}, and at least two "
    "episodes fail so. Warns if failures earn more, but not surely. Unknown if fewer than "
    f"{ENOUGH} episodes were scored and none has a full reward.",
    reason="Partial credit may differ from a strict score. A full reward for a failure teaches the failure.",
    source=f"{GUIDE}: a base reward well above the external score shows a lenient parser. {EXACT}.",
    advice="Make the reward's reading of answers stricter.",
    judge=judge,
)
