"""The board of one job, or of a few side by side: learning, health, speed and cost."""

from __future__ import annotations

from typing import Any

from headway_dashboards import board, cost, evaluation, health, learning, remedies, speed
from headway_dashboards.board import Board, Section
from headway_dashboards.panels import Limit, Query, number
from headway_dashboards.promql import BY_JOB, growth, value


def made() -> Board:
    """The job board."""
    return Board(
        "job",
        "Headway / Job",
        "Learning, health, speed and cost of one job; of several, their curves lie over each other.",
        [board.namespace(), board.kind(), board.job_name(all_at_first=False)],
        [
            Section("Now", _now()),
            Section("Learning", learning.panels()),
            Section("Health", health.panels()),
            Section("Speed", speed.panels()),
            Section("Cost", cost.panels()),
            Section("Evaluation", evaluation.panels(), folded=True),
        ],
        [remedies.mark()],
    )


def _now() -> list[Any]:
    state = f"sum by ({BY_JOB}, state, reason) ({value('job/info')})"
    raised = f"sum by ({BY_JOB}) ({value('job/signal')} == bool 2)"
    return [
        number(
            "State",
            "And its reason, as the job's status says.",
            Query(state, "{{job_name}}: {{state}} ({{reason}})"),
            span=8,
            names=True,
        ),
        number(
            "Step",
            "Completed and checkpointed.",
            Query(value("job/step"), "{{job_name}}"),
            Query(value("job/max_steps"), "of"),
            span=4,
        ),
        number(
            "Reward", "Of the last batch.", Query(value("job/reward"), "{{job_name}}"), span=3, decimals=3
        ),
        number(
            "External score",
            "Of the last validation.",
            Query(value("job/external_score"), "{{job_name}}"),
            span=3,
            decimals=3,
        ),
        number(
            "Signals raised",
            "Signals that are raised.",
            Query(raised, "{{job_name}}"),
            span=3,
            limits=[Limit(1)],
        ),
        number(
            "Cost an hour",
            "At the pace of now.",
            Query(growth("job/cost"), "{{job_name}}"),
            span=3,
            unit="currencyUSD",
        ),
    ]
