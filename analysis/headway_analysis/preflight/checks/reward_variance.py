"""Checks that the episodes of a group differ in reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headway_analysis.preflight.checks.foothold import grouped
from headway_analysis.preflight.conversation import answer_of, excerpt
from headway_analysis.preflight.definition import MAX_EXAMPLES, Check, Example, Finding
from headway_analysis.preflight.evidence import Baseline, PlayedScript, Sampled
from headway_analysis.preflight.shares import enough_with, share
from headway_analysis.preflight.sources import EXACT, GUIDE
from headway_analysis.signals.judges.learning import MAX_UNIFORM

ID: Final = "reward-variance"
FEW: Final = 4
"""With fewer groups the verdict is Unknown."""
ENOUGH: Final = enough_with(MAX_UNIFORM)
"""If this many groups are all uniform, their share is surely above the threshold."""
ROUNDING: Final = 1e-9


def judge(baseline: Baseline, played: Sequence[PlayedScript]) -> Finding:
    """The finding on the share of groups whose episodes all have the same reward."""
    groups = grouped(baseline.scored)
    needs = ENOUGH * baseline.facts.group_size
    if len(groups) < FEW:
        observed = f"{len(groups)} groups have two rewards or more: too few to tell."
        return Finding(ID, "Unknown", observed, threshold=MAX_UNIFORM, needs=needs)
    uniform = [members for members in groups if _uniform(members)]
    part = share(len(uniform), len(groups))
    rewards = [one.record.reward or 0.0 for one in baseline.scored]
    constant = max(rewards) - min(rewards) <= ROUNDING
    observed = f"In {part} groups every episode has the same reward."
    if constant:
        observed = f"All {len(rewards)} episodes have the reward {rewards[0]:g}."
    numbers = (("lowest_reward", min(rewards)), ("highest_reward", max(rewards)))
    over = part.low > MAX_UNIFORM
    if not over and not constant:
        return Finding(ID, "Pass", observed, part.value, MAX_UNIFORM, part.low, part.high, numbers=numbers)
    if constant and not over:
        observed = f"{observed} A sure verdict takes {needs} episodes in {ENOUGH} groups."
    return Finding(
        ID,
        "Fail" if constant and over else "Warn",
        observed,
        part.value,
        MAX_UNIFORM,
        part.low,
        part.high,
        "Give partial credit, such as the share of fields that are right, or choose rows that the base model "
        "gets right sometimes.",
        "spec.environment.entrypoint",
        needs=needs if constant and not over else None,
        examples=tuple(map(_example, uniform[:MAX_EXAMPLES])),
        numbers=numbers,
    )


def _uniform(members: Sequence[Sampled]) -> bool:
    rewards = [one.record.reward or 0.0 for one in members]
    return max(rewards) - min(rewards) <= ROUNDING


def _example(members: Sequence[Sampled]) -> Example:
    first = members[0]
    answers = "\n".join(excerpt(answer_of(one) or "(no answer)", 2) for one in members[:4])
    text = f"all {len(members)} have reward {first.record.reward:g}\n{answers}"
    return Example(f"row {first.group.row}", text, first.record.episode_id)


CHECK: Final = Check(
    id=ID,
    meaning="The episodes of a group all get the same reward.",
    number="Share of groups whose episodes all have the same reward.",
    threshold=f"Fails if all rewards are equal and the share is surely above {MAX_UNIFORM:.0%}. Warns if "
    f"only one of the two is true. Unknown below {FEW} groups.",
    reason="A group whose rewards are equal has no gradient. The signal GroupsUniform has the same "
    "threshold.",
    source=f"{GUIDE}: the rewards of 100 baseline rollouts vary. They are neither all 0 nor all 1. {EXACT}.",
    advice="Give partial credit, or choose rows on which the base model sometimes succeeds.",
    judge=judge,
)
