"""Estimates usage, time and cost of the whole job from the baseline's episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from math import fsum

from headway_analysis.estimate.amounts import Range
from headway_analysis.estimate.measured import BilledGroup, Measured, held_out, measure, of_group
from headway_analysis.estimate.plan import Plan, after_preflight
from headway_analysis.estimate.whole import TRAIN, Estimate, Spent, by_episodes, seconds_by_episodes
from headway_analysis.preflight.evidence import Baseline, Facts, Sampled


def measured(baseline: Baseline) -> Measured:
    """What an episode of the baseline used, in the classes of training."""
    return measure(groups(baseline))


def groups(baseline: Baseline) -> list[BilledGroup]:
    """Each group of the baseline, as it would be billed in training."""
    members: dict[str, list[Sampled]] = {}
    for one in baseline.sampled:
        members.setdefault(one.group.group_id, []).append(one)
    return [_group(found, baseline.facts) for found in members.values()]


def _group(members: Sequence[Sampled], facts: Facts) -> BilledGroup:
    group = members[0].group
    scored = [one for one in members if one.record.reward is not None]
    return of_group(
        [one.record for one in members],
        group.discarded,
        group.judgements,
        row_tokens=fsum(one.row_tokens for one in scored),
        trains_alike=facts.trains_alike,
        least_scored=min(2, facts.group_size),
    )


def plan_of(facts: Facts) -> Plan:
    """The job's plan; a plan with only the training episodes if the facts have none."""
    return facts.plan or Plan(facts.max_steps, facts.batch_size, facts.group_size)


def estimate(baseline: Baseline) -> Estimate:
    """The estimate of the whole job, including what the preflight has used."""
    facts, played = baseline.facts, groups(baseline)
    price = facts.price or (lambda key: None)
    spent: dict[str, float] = {}
    for group in played:
        for key, much in group.usage.items():
            if key != TRAIN:
                spent[held_out(key)] = spent.get(held_out(key), 0.0) + much
    paid = sum((much * (price(key) or 0) for key, much in _exact(spent)), Decimal(0))
    return by_episodes(
        "Preflight",
        plan_of(facts),
        after_preflight(plan_of(facts)),
        measure(played),
        price,
        spent=Spent(spent, paid, baseline.seconds),
        ahead=ahead(plan_of(facts), seconds_each(baseline)),
    )


def _exact(used: Mapping[str, float]) -> Iterator[tuple[str, Decimal]]:
    return ((key, Decimal(repr(much))) for key, much in used.items())


def seconds_each(baseline: Baseline) -> float | None:
    """Mean seconds of rollout time for each scored episode, while others ran beside it; None if none was
    scored."""
    scored = len(baseline.scored)
    return baseline.seconds / scored if scored and baseline.seconds > 0 else None


def ahead(plan: Plan, each: float | None) -> Range | None:
    """Seconds from the end of the preflight to the end of the job; None if `each` is unknown.

    Args:
        each: seconds of rollout time for each episode (`seconds_each`).
    """
    return None if each is None else seconds_by_episodes(plan, after_preflight(plan), each)
