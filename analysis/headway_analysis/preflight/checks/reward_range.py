"""Checks that every reward is finite and in the range of the spec."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from headway_analysis.preflight.choose import replay, varied
from headway_analysis.preflight.conversation import answer_of, excerpt
from headway_analysis.preflight.definition import MAX_EXAMPLES, Check, Example, Finding
from headway_analysis.preflight.evidence import Baseline, PlayedScript, Script
from headway_analysis.preflight.shares import enough_without, share
from headway_analysis.preflight.sources import EXACT, GUIDE

ID: Final = "reward-range"
TRIED: Final = 2
RARE: Final = 0.05
ENOUGH: Final = enough_without(RARE)
JUDGEMENT: Final = frozenset(
    ("RewardFailed", "RewardNotFinite", "RewardOutOfBounds", "RewardOutOfRange", "TurnRewardsWrong",
     "GroupRewardsWrong")
)  # fmt: skip
"""Reasons of episodes that are lost because reward or score raised an error or returned a wrong value."""
LONG: Final = 2_000
"""Number of words of the very long answer."""


def scripts(baseline: Baseline) -> Sequence[Script]:
    """Scripts with answers on which scorers are seldom tested: an empty, an odd and a very long answer."""
    found: list[Script] = []
    for number, one in enumerate(varied(baseline.sampled, TRIED)):
        for name, answer in (("empty", ""), ("odd", "<{['\"%s\\"), ("long", "word " * LONG)):
            found.append(replay(ID, f"{name} answer: {number}", one, answer=answer))
    return found


def judge(baseline: Baseline, played: Sequence[PlayedScript]) -> Finding:
    """The finding on rewards out of range, and on judgements that failed."""
    low, high = baseline.facts.reward_range
    bad = [*_bad_episodes(baseline), *_bad_scripts(baseline, played)]
    judged = len(baseline.scored) + sum(one.reward is not None for one in played)
    total = judged + sum(example.title.startswith("lost") for example in bad)
    if not total:
        return Finding(ID, "Unknown", "No episode was judged.", threshold=0.0, needs=ENOUGH)
    part = share(min(len(bad), total), total)
    if bad:
        observed = f"{len(bad)} of {total} judgements give no finite reward in [{low:g}, {high:g}]."
        advice = "Make reward return a finite number in the range for every answer, or correct the range."
        return Finding(
            ID,
            "Fail",
            observed,
            part.value,
            0.0,
            part.low,
            part.high,
            advice,
            "spec.reward.range",
            examples=tuple(bad[:MAX_EXAMPLES]),
        )
    observed = f"{total} rewards are finite and in [{low:g}, {high:g}]."
    if baseline.facts.relative:
        observed = f"{observed} Odd answers were tried only with reward, not with group_reward."
    return Finding(ID, "Pass", observed, 0.0, 0.0, part.low, part.high)


def _bad_episodes(baseline: Baseline) -> Iterator[Example]:
    low, high = baseline.facts.reward_range
    for one in baseline.sampled:
        record = one.record
        if record.reward is None:
            if record.cause in JUDGEMENT:
                yield Example(f"lost: row {one.group.row}", excerpt(record.error or ""), record.episode_id)
        elif not low <= record.reward <= high:
            text = f"reward {record.reward:g}\n{answer_of(one) or '(no answer)'}"
            yield Example(f"out of range: row {one.group.row}", excerpt(text), record.episode_id)


def _bad_scripts(baseline: Baseline, played: Sequence[PlayedScript]) -> Iterator[Example]:
    low, high = baseline.facts.reward_range
    for one in played:
        if one.reward is not None and not (math.isfinite(one.reward) and low <= one.reward <= high):
            yield Example(f"out of range: {one.script.label}", f"reward {one.reward}", one.script.like)
        elif one.reward is None and one.cause in JUDGEMENT:
            yield Example(f"lost: {one.script.label}", excerpt(one.error or ""), one.script.like)


CHECK: Final = Check(
    id=ID,
    meaning="A reward is not finite, is out of range, or is missing.",
    number="Share of judgements without a finite reward in spec.reward.range. The check judges baseline "
    "episodes, and empty, odd and very long answers.",
    threshold="Fails if any judgement gives no finite reward in the range. Unknown if nothing was judged.",
    reason="An episode with such a reward is lost and retried, each time for nothing.",
    source=f"{GUIDE}: rewards in [0, 1], or [-1, 1] with negative terms. {EXACT}.",
    advice="Make reward return a finite number in the range for every answer, or correct the range.",
    judge=judge,
    scripts=scripts,
    stops_early=True,
    needs_model=False,
)
