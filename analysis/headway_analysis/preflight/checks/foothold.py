"""Checks that the base model succeeds in some episodes, but not in nearly all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import fsum
from typing import Final

import numpy as np

from headway_analysis.measures.episodes import pass_at_k
from headway_analysis.preflight.choose import is_full
from headway_analysis.preflight.conversation import answer_of, excerpt
from headway_analysis.preflight.definition import MAX_EXAMPLES, Check, Example, Finding
from headway_analysis.preflight.evidence import Baseline, Facts, PlayedScript, Sampled
from headway_analysis.preflight.shares import (
    ALPHA,
    CERTAIN,
    enough_without,
    evidence_above,
    evidence_below,
    share,
    whole_groups,
)
from headway_analysis.preflight.sources import GUIDE, SEQUENTIAL
from headway_analysis.statistics.estimates import Sample, estimate

ID: Final = "foothold"
RARELY: Final = 0.05
"""Success share from which a base model has a foothold."""
NEARLY_ALWAYS: Final = 0.9
"""Success share from which a base model has little to learn."""
NEVER: Final = ((0.0, 1.0),)
ALWAYS: Final = ((1.0, 0.5), (0.97, 0.5))
"""`NEVER` and `ALWAYS`: (rate, weight) of the alternative success rates in the test martingales."""
LIKELY: Final = 5.0
"""Evidence from which a share above `NEARLY_ALWAYS` gives a warning."""
ROWS_NEVER: Final = 8
ROWS_ALWAYS: Final = 12
"""Rows that a Fail needs, for no success and for nearly always success: episodes of one row are alike."""
SOME: Final = 16
"""With fewer episodes the verdict is Unknown."""
ENOUGH: Final = enough_without(RARELY)
MAX_EPISODES: Final = 1_000
"""The most episodes that a finding asks for."""


def judge(baseline: Baseline, played: Sequence[PlayedScript]) -> Finding:
    """The finding on the success share, with numbers on groups that have both success and failure."""
    scored = [one for one in baseline.scored if one.record.score is not None]
    facts = baseline.facts
    size = facts.group_size
    total, hits = len(scored), sum(is_full(one, facts) for one in scored)
    rows = len({one.group.row for one in scored})
    if total < SOME:
        observed = f"{hits} of {total} scored episodes succeed: too few to tell."
        return Finding(ID, "Unknown", observed, threshold=RARELY, needs=ENOUGH)
    low, high = _interval(scored, facts)
    observed = (
        f"{hits} of {total} episodes on {rows} rows reach score {facts.success_threshold:g} "
        f"({low:.0%} to {high:.0%})."
    )
    numbers = _numbers(scored, facts)
    found = Finding(ID, "Pass", observed, hits / total, RARELY, low, high, numbers=numbers)
    if hits == 0:
        sure = evidence_below(hits, total, RARELY, NEVER) >= CERTAIN and rows >= ROWS_NEVER
        enough = whole_groups(ENOUGH, size, ROWS_NEVER)
        return _sure_or_not(_never(found, scored), sure, facts, enough, ROWS_NEVER)
    always = evidence_above(hits, total, NEARLY_ALWAYS, ALWAYS)
    if always >= LIKELY:
        sure = always >= CERTAIN and rows >= ROWS_ALWAYS
        enough = whole_groups(_enough_always(hits / total), size, ROWS_ALWAYS)
        return _sure_or_not(_always(found, scored), sure, facts, enough, ROWS_ALWAYS)
    if share(hits, total).high < RARELY:
        advice = "Expect a slow start: raise groupSize, or begin with easier rows."
        return replace(found, verdict="Warn", advice=advice, field="spec.algorithm.groupSize")
    return found


def _sure_or_not(found: Finding, sure: bool, facts: Facts, enough: int, rows: int) -> Finding:
    """The finding as Fail if `sure`, or as a warning with the episodes or rows that a sure verdict needs."""
    if sure:
        return replace(found, verdict="Fail")
    if len(facts.rows) < rows:
        observed = (
            f"{found.observed} A sure verdict takes {rows} training rows, and there are {len(facts.rows)}."
        )
        return replace(found, verdict="Warn", observed=observed)
    observed = f"{found.observed} A sure verdict takes {enough} episodes on {rows} rows."
    return replace(found, verdict="Warn", observed=observed, needs=enough)


def _enough_always(rate: float) -> int:
    """Episodes after which a success share of `rate` is surely above `NEARLY_ALWAYS`; at most
    `MAX_EPISODES`."""
    total = ENOUGH
    while (
        evidence_above(math.floor(rate * total), total, NEARLY_ALWAYS, ALWAYS) < CERTAIN
        and total < MAX_EPISODES
    ):
        total += 1
    return total


def _never(found: Finding, scored: Sequence[Sampled]) -> Finding:
    return replace(
        found,
        advice="Simplify the task, show the answer's format in the prompt, or start from a model that "
        "succeeds sometimes: training amplifies what the model already does.",
        field="spec.model.base",
        examples=_examples(scored, "an episode without success"),
    )


def _always(found: Finding, scored: Sequence[Sampled]) -> Finding:
    return replace(
        found,
        threshold=NEARLY_ALWAYS,
        advice="Train on harder rows: if nearly every episode succeeds, groups do not differ.",
        field="spec.data.train",
        examples=_examples(scored, "an episode with success"),
    )


def _interval(scored: Sequence[Sampled], facts: Facts) -> tuple[float, float]:
    """Lower and upper bound of the success share's 95 % interval, with rows as clusters."""
    counts: Counter[int] = Counter()
    units = []
    for one in scored:
        units.append((one.group.row, counts[one.group.row]))
        counts[one.group.row] += 1
    values = np.array([float(is_full(one, facts)) for one in scored])
    names = tuple(str(row) for row, _ in units)
    found = estimate(Sample(tuple(units), names, values, np.ones(len(values)), share=True))
    if found is None or found.low is None or found.high is None:
        part = share(int(values.sum()), len(values))
        return part.low, part.high
    return found.low, found.high


def grouped(scored: Iterable[Sampled]) -> list[list[Sampled]]:
    """The episodes of each group. Groups with a single episode are left out."""
    groups: dict[str, list[Sampled]] = {}
    for one in scored:
        groups.setdefault(one.record.group_id, []).append(one)
    return [members for members in groups.values() if len(members) > 1]


def _numbers(scored: Sequence[Sampled], facts: Facts) -> tuple[tuple[str, float], ...]:
    size = facts.group_size
    counts = [(len(each), sum(is_full(one, facts) for one in each)) for each in grouped(scored)]
    fit = [(tries, good) for tries, good in counts if tries >= size]
    found = [("pass@1", sum(is_full(one, facts) for one in scored) / len(scored))]
    if fit:
        found.append((f"pass@{size}", fsum(pass_at_k(n, c, size) for n, c in fit) / len(fit)))
    if counts:
        found.append(
            ("groups_that_would_teach", sum(0 < good < tries for tries, good in counts) / len(counts))
        )
    return tuple(found)


def _examples(scored: Sequence[Sampled], title: str) -> tuple[Example, ...]:
    some = sorted(scored, key=lambda one: (one.record.reward or 0.0, one.record.episode_id))[-MAX_EXAMPLES:]
    return tuple(
        Example(
            f"row {one.group.row}: {title}",
            excerpt(
                f"reward {one.record.reward:g}, score {one.record.score:g}\n{answer_of(one) or '(no answer)'}"
            ),
            one.record.episode_id,
        )
        for one in some
    )


CHECK: Final = Check(
    id=ID,
    meaning="The base model never succeeds, or nearly always does.",
    number="Share of scored episodes whose external score reaches successThreshold, with an interval that "
    "counts rows as clusters. The result also has pass@G (G is the group size), and the share of "
    "groups with both success and failure.",
    threshold=f"Fails if none of {ENOUGH} episodes on {ROWS_NEVER} rows succeeds. Warns if none of {SOME} "
    f"does. Warns if the share is surely below {RARELY:.0%}. A test martingale has the evidence for a "
    f"share above {NEARLY_ALWAYS:.0%}. Fails if it reaches {CERTAIN:g} on at least {ROWS_ALWAYS} rows. "
    f"Warns if it reaches {LIKELY:g}. Unknown below {SOME} episodes.",
    reason=f"A model that succeeds in {RARELY:.0%} of its episodes shows it within {ENOUGH} with a chance "
    f"of {1 - ALPHA:.0%}. A test martingale may be looked at after each group without a larger error.",
    source=f"{GUIDE}: if the base model scores zero, stop and simplify. {SEQUENTIAL}.",
    advice="Simplify the task or use another base model; if it always succeeds, use harder rows.",
    judge=judge,
    stops_early=True,
)
