"""Panels that show an evaluation's measures so far."""

from __future__ import annotations

from typing import Any

from headway_dashboards.panels import Query, curves, table
from headway_dashboards.promql import JOB, narrowed, of, value

KEYS = ("job_name", "candidate", "task", "measure")


def panels() -> list[Any]:
    """The evaluation panels of the job board. They are empty for training jobs."""
    score = narrowed(JOB, measure="external_score", task="all")
    return [
        table(
            "Measures",
            "So far, with the ends of the 95 % interval if it has one (docs/evaluation.md).",
            [
                Query(of("eval/measure"), "measured"),
                Query(of("eval/measure_low"), "low"),
                Query(of("eval/measure_high"), "high"),
            ],
            keys=KEYS,
            span=12,
            height=10,
        ),
        table(
            "Differences from the baseline",
            "Paired by row and try, with the bounds of the 95 % interval if it has one.",
            [
                Query(of("eval/difference"), "difference"),
                Query(of("eval/difference_low"), "low"),
                Query(of("eval/difference_high"), "high"),
            ],
            keys=KEYS,
            span=12,
            height=10,
        ),
        curves(
            "External score of candidates",
            "So far, with the ends of the 95 % interval: it narrows as rows are measured.",
            [
                Query(value("eval/measure", score), "{{candidate}}"),
                Query(value("eval/measure_low", score), "{{candidate}} low"),
                Query(value("eval/measure_high", score), "{{candidate}} high"),
            ],
            span=12,
        ),
        curves(
            "Rows",
            "Those that each candidate was measured on; and of the whole evaluation.",
            [
                Query(value("eval/rows"), "{{job_name}} {{candidate}}"),
                Query(value("job/groups"), "{{job_name}} done, of all candidates"),
                Query(value("job/max_groups"), "{{job_name}} to do, of all candidates"),
            ],
            span=12,
        ),
        curves(
            "Episodes of candidates in flight",
            "Of an evaluation.",
            [Query(value("eval/in_flight"), "{{job_name}} {{candidate}}")],
            span=12,
        ),
    ]
