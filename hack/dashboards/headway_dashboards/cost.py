"""What a job has cost, and for what."""

from __future__ import annotations

from typing import Any

from headway_dashboards.panels import Query, curves
from headway_dashboards.promql import growth, of, per_second, total, value


def panels() -> list[Any]:
    """Of the job's board."""
    return [
        curves(
            "Cost",
            "So far, by the price book.",
            [Query(value("usage/cost_usd"), "{{job_name}}")],
            unit="currencyUSD",
        ),
        curves(
            "Cost an hour",
            "At the pace of each moment.",
            [Query(growth("usage/cost_usd"), "{{job_name}}")],
            unit="currencyUSD",
        ),
        curves(
            "Tokens by class",
            "Of the whole job, as they are billed.",
            [Query(f"{total(of('usage/tokens'), 'class')} > 0", "{{job_name}} {{class}}")],
            stacked=True,
        ),
        curves(
            "Sandbox seconds",
            "Time that sandboxes were in use, and how many were so on average.",
            [Query(value("usage/sandbox_seconds"), "{{job_name}}")],
            unit="s",
        ),
        curves(
            "Sandboxes in use, by the bill",
            "Sandbox seconds a second.",
            [Query(total(per_second(of("usage/sandbox_seconds"))), "{{job_name}}")],
        ),
        curves(
            "Tokens for nothing",
            "Computed or sampled and then thrown away, by why; since the coordinator's process began.",
            [Query(value("rollout/discarded_tokens"), "{{job_name}} {{reason}}")],
            stacked=True,
        ),
    ]
