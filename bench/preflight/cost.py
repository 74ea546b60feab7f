"""Measures the CPU seconds of the checks on a baseline of 1,000 episodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TypeVar

from help_desk import Desk, desk_baseline, desk_rows
from made_up_baselines import play_all

from bench.support.report import Goal, Row, Section, Table, prose
from headway_analysis.preflight.catalogue import CHECKS
from headway_analysis.preflight.evidence import Baseline, PlayedScript
from headway_analysis.preflight.report import document, markdown
from headway_analysis.preflight.run import findings, scripts_of

ROWS, SIZE = 125, 8
TRAINING, HELD_OUT = 10_000, 1_000
TIMES = 5
GOAL_SECONDS = 1.0
T = TypeVar("T")


def measure(folder: Path) -> Section:
    """Time the scripts, the findings and the report of one baseline."""
    baseline = desk_baseline(rows=ROWS, size=SIZE)
    rows = [*baseline.facts.rows, *desk_rows(TRAINING - ROWS, seed=1)]
    facts = replace(
        baseline.facts, rows=rows, validation=desk_rows(HELD_OUT, seed=2), test=desk_rows(HELD_OUT, seed=3)
    )
    baseline = replace(baseline, facts=facts)
    played = play_all(lambda: Desk({}), scripts_of(baseline))
    table, total = _timed(baseline, played)
    return Section(
        title="Cost",
        read=prose(f"""
            A baseline of {ROWS * SIZE} episodes on {ROWS} rows, of a dataset of {TRAINING} training rows, and
            {HELD_OUT} each for validation and test. Seconds are of a processor, the median of {TIMES} runs in
            one process. A check takes what writing its scripts and judging them take. `findings` is all of
            them as a job calls it, with the scripts written once more. The report is `preflight.json` and
            `preflight.md`.
        """),
        tables=[Table(f"{len(played)} scripts for {len(baseline.sampled)} episodes", table)],
        goals=[
            Goal(
                f"scripts, findings and report of 1,000 episodes in under {GOAL_SECONDS:g} s",
                f"{total:.2f} s",
                total < GOAL_SECONDS,
            )
        ],
    )


def _timed(baseline: Baseline, played: list[PlayedScript]) -> tuple[list[Row], float]:
    table: list[Row] = []
    for check in CHECKS:
        scripts, writing = _seconds(lambda check=check: check.scripts(baseline))
        labels = {script.label for script in scripts}
        own = [one for one in played if one.script.check == check.id and one.script.label in labels]
        found, judging = _seconds(lambda check=check, own=own: check.judge(baseline, own))
        table.append(
            {
                "check": check.id,
                "scripts": len(scripts),
                "ms to write them": f"{1000 * writing:.1f}",
                "ms to judge": f"{1000 * judging:.1f}",
                "verdict": found.verdict,
            }
        )
    _, writing = _seconds(lambda: scripts_of(baseline))
    found, judging = _seconds(lambda: findings(baseline, played))
    _, telling = _seconds(lambda: markdown(document(baseline, found)))
    for name, seconds in (("scripts_of", writing), ("findings", judging), ("report", telling)):
        table.append(
            {
                "check": f"`{name}`",
                "scripts": "",
                "ms to write them": "",
                "ms to judge": f"{1000 * seconds:.1f}",
                "verdict": "",
            }
        )
    return table, writing + judging + telling


def _seconds(work: Callable[[], T]) -> tuple[T, float]:
    taken = []
    for _ in range(TIMES):
        began = time.process_time()
        result = work()
        taken.append(time.process_time() - began)
    return result, median(taken)
