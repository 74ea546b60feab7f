"""Panels that show the cost of a job, by class of usage."""

from __future__ import annotations

from typing import Any

from headway_dashboards.panels import Query, curves
from headway_dashboards.promql import growth, of, per_second, total, value


def panels() -> list[Any]:
    """The cost panels of the job board."""
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
            "Cost by class",
            "So far, in parts: what each kind of tokens and seconds costs by the price book.",
            [Query(f"{total(of('cost/usd'), 'class')} > 0", "{{job_name}} {{class}}")],
            unit="currencyUSD",
            stacked=True,
        ),
        curves(
            "Accelerators held",
            "By role and product: accelerator seconds a second.",
            [
                Query(
                    total(per_second(of("usage/accelerator_seconds")), "role", "product"),
                    "{{job_name}} {{role}} {{product}}",
                )
            ],
            stacked=True,
        ),
        curves(
            "Cost of the whole job",
            "As it is estimated now, low, likely and high: by data and limits, then by the preflight's "
            "episodes, then by those played so far.",
            [Query(value("estimate/cost_usd"), "{{job_name}} {{bound}}")],
            unit="currencyUSD",
        ),
        curves(
            "Budget",
            (
                "The limit of spec.budget in US dollars, what is spent, and the most that running work "
                "may still cost."
            ),
            [
                Query(value("budget/limit_usd"), "{{job_name}} limit"),
                Query(value("budget/spent_usd"), "{{job_name}} spent"),
                Query(value("budget/reserved_usd"), "{{job_name}} reserved"),
            ],
            unit="currencyUSD",
        ),
        curves(
            "Budget of tokens",
            "Share of each limit of spec.budget.tokens that is spent or reserved.",
            [
                Query(
                    f"({value('budget/spent_tokens')} + {value('budget/reserved_tokens')})"
                    f" / {value('budget/limit_tokens')}",
                    "{{job_name}} {{class}}",
                )
            ],
            unit="percentunit",
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
