"""Panels that show how a job spends its time, and how much runs concurrently."""

from __future__ import annotations

from typing import Any

from headway_dashboards.panels import Query, curves, metric_curves
from headway_dashboards.promql import of, per_second, quantile, total, value

OF_A_STEP = {
    "wait for the batch": "timing_s/wait_for_batch",
    "forward, backward, optimizer": "timing_s/policy_update",
    "checkpoint": "timing_s/save_checkpoint",
    "report the step": "timing_s/report",
    "delete what is not kept": "timing_s/prune",
    "write the weights": "timing_s/publish_weights",
    "other": "timing_s/other",
}


def panels() -> list[Any]:
    """The speed panels of the job board."""
    tokens = total(per_second(of("usage/tokens")), "class")
    return [
        curves(
            "A step's seconds",
            "Stacked, they are timing_s/step. "
            "Mostly waiting: rollout is too slow. Little waiting: the learner is.",
            [Query(value(name), f"{{{{job_name}}}} {legend}") for legend, name in OF_A_STEP.items()],
            unit="s",
            stacked=True,
            span=12,
        ),
        metric_curves(
            "Steps, weights and validations",
            "Whole times, from end to end.",
            {
                "a step": "timing_s/step",
                "of it the learner's": "timing_s/training",
                "weights to the first server": "timing_s/weight_sync",
                "a validation": "timing_s/eval",
            },
            span=12,
        ),
        curves(
            "Episodes in flight",
            "Against what the servers' KV caches allow now.",
            [
                Query(value("episodes/in_flight"), "{{job_name}} {{purpose}}"),
                Query(value("rollout/concurrency_limit"), "{{job_name}} limit"),
                Query(value("rollout/turns_in_flight"), "{{job_name}} turns of agents outside"),
            ],
        ),
        curves(
            "How long episodes take",
            "Of all that ended, with any outcome.",
            [
                Query(quantile(0.5, "episodes/seconds"), "{{job_name}} half within"),
                Query(quantile(0.95, "episodes/seconds"), "{{job_name}} 95 % within"),
            ],
            unit="s",
        ),
        curves(
            "Tokens a second",
            "By class of the bill.",
            [Query(tokens, "{{job_name}} {{class}}")],
            unit="suffix: /s",
            stacked=True,
        ),
        metric_curves(
            "What a step is made of",
            "Tokens of its rows, with and without a gradient.",
            {
                "all": "training/total_tokens",
                "with a gradient": "training/trainable_token_positions",
                "without": "training/nontrainable_token_positions",
            },
        ),
        metric_curves(
            "Spool",
            "Finished groups that wait for a checkpoint. It grows where the learner is slower than rollout.",
            {"groups": "spool/groups"},
        ),
        metric_curves(
            "Write to the artifact store",
            "How long the running request has taken. If it grows, the store is unavailable.",
            {"under way": "store/busy_seconds"},
        ),
    ]
