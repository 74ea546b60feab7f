"""Measures how often checks raise false alarms, and how often `foothold` finds a missing foothold."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from help_desk import Desk, desk_baseline
from made_up_baselines import of_values, play_all

from bench.support.report import Goal, Row, Section, Table, prose
from headway_analysis.preflight.catalogue import BY_ID, CHECKS
from headway_analysis.preflight.run import findings, scripts_of

SEEDS = range(30)
DRAWS = 60
RATES = (0.0, 0.01, 0.03, 0.05, 0.1, 0.3, 0.6, 0.85, 0.95, 1.0)
GROUPS, SIZE = 13, 8
ALIKE = 4.0
"""Sum of both parameters of the beta distribution of the rows' success rates. The larger, the more alike they
are.
"""


def measure(folder: Path) -> Section:
    """Count the false alarms of clean jobs, and the verdicts of `foothold` by true success rate."""
    table, alarms = _clean()
    return Section(
        title="Alarms",
        read=prose(f"""
            First {len(SEEDS)} clean jobs: the desk with other rows, another model and another skill (0.3
            to 0.7) each, {GROUPS} groups of {SIZE}. `Fail` and `Warn` are false there. `Unknown` of
            tools-like-production is right: no contract is given.

            Then `foothold` alone, for true success rates from 0 to 1: verdicts of {DRAWS} baselines of
            {GROUPS * SIZE} episodes each. A row's own success rate is drawn from a beta distribution with
            that mean, so that rows differ as those of a real dataset do. Its parameters add up to {ALIKE:g}.
        """),
        tables=[Table("Clean jobs", table), Table("`foothold` by true success rate", _foothold())],
        goals=[Goal(f"no false alarm in {len(SEEDS)} clean jobs", f"{alarms}", alarms == 0)],
    )


def _clean() -> tuple[list[Row], int]:
    counts: dict[str, Counter[str]] = {check.id: Counter() for check in CHECKS}
    for seed in SEEDS:
        baseline = desk_baseline(seed=seed, skill=0.3 + 0.4 * seed / len(SEEDS), rows=GROUPS, size=SIZE)
        for found in findings(baseline, play_all(lambda: Desk({}), scripts_of(baseline))):
            counts[found.check][found.verdict] += 1
    table = [
        {"check": name, **{verdict: found[verdict] for verdict in ("Pass", "Warn", "Fail", "Unknown")}}
        for name, found in counts.items()
    ]
    return table, sum(found["Fail"] + found["Warn"] for found in counts.values())


def _foothold() -> list[Row]:
    drawn = random.Random(7)
    table = []
    for rate in RATES:
        found: Counter[str] = Counter()
        for _ in range(DRAWS):
            groups = [_group(rate, drawn) for _ in range(GROUPS)]
            found[BY_ID["foothold"].judge(of_values(groups), ()).verdict] += 1
        shares = {verdict: f"{found[verdict] / DRAWS:.0%}" for verdict in ("Pass", "Warn", "Fail")}
        table.append({"success rate": f"{rate:.0%}", **shares})
    return table


def _group(rate: float, drawn: random.Random) -> list[tuple[float, float]]:
    own = rate if rate in (0.0, 1.0) else drawn.betavariate(ALIKE * rate, ALIKE * (1 - rate))
    return [(hit, hit) for hit in (float(drawn.random() < own) for _ in range(SIZE))]
