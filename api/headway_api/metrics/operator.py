"""Metrics of the operator: its own, and those of each job and each shared budget."""

from typing import Final

from headway_api.metrics.definition import OF_JOB, MetricFamily, MetricKind, Unit

OPERATOR: Final = (
    MetricFamily("operator/reconcile_seconds", "Time of one reconcile of one job.", "seconds", "histogram"),
    MetricFamily("operator/reconcile_errors", "Reconciles retried.", kind="counter", labels=("reason",)),
    MetricFamily(
        "operator/applies", "Objects compared with the plan.", kind="counter", labels=("kind", "result")
    ),
    MetricFamily("operator/last_success_age_seconds", "Time since a reconcile last succeeded.", "seconds"),
    MetricFamily("operator/queue_depth", "Jobs that wait for a worker or have one."),
    MetricFamily("operator/leader", "1 while this replica holds the Lease."),
    MetricFamily(
        "operator/jobs", "Jobs by kind, namespace and state.", labels=("kind", "namespace", "state")
    ),
)


def of_job(name: str, text: str, unit: Unit = "", *labels: str, kind: MetricKind = "gauge") -> MetricFamily:
    """A metric that the operator takes from each job's status, while the custom resource exists."""
    return MetricFamily(f"job/{name}", text, unit, kind, (*OF_JOB, *labels))


OF_SHARED: Final = ("namespace", "limit")
SHARED_BUDGETS: Final = (
    MetricFamily(
        "namespace_budget/limit",
        "The most that the jobs of a namespace may use together: US dollars, or tokens of the limit's class.",
        labels=OF_SHARED,
    ),
    MetricFamily(
        "namespace_budget/spent", "How much of a limit the jobs of a namespace have used.", labels=OF_SHARED
    ),
    MetricFamily(
        "namespace_budget/left",
        "How much of a limit is neither used nor granted to a job.",
        labels=OF_SHARED,
    ),
    MetricFamily(
        "namespace_budget/exhausted",
        "1 where a job needs more than is left of a limit.",
        labels=("namespace",),
    ),
    MetricFamily(
        "namespace_budget/low",
        "1 where less than a fifth of a limit is unused.",
        labels=("namespace",),
    ),
)
"""The operator's metrics of each RLBudget."""
JOBS: Final = (
    of_job(
        "info",
        "1 for each job: state, reason, loss, base model and manager as they are now, to join on.",
        "",
        *("state", "reason", "loss", "base_model", "manager"),
    ),
    of_job("active", "1 while the job should run: it is not suspended, paused, deleted or ended."),
    of_job(
        "condition",
        "1 for each condition of a job, with the status (True, False or Unknown) and reason that it has.",
        "",
        *("type", "status", "reason"),
    ),
    of_job(
        "signal",
        "State of a signal, of a job's 16 worst: 0 clear, 1 suspect, 2 raised.",
        "",
        "signal",
    ),
    of_job("step", "Training steps completed and checkpointed.", "steps"),
    of_job("max_steps", "Training steps after which the job is done.", "steps"),
    of_job("groups", "Rows that an evaluation has done, over all candidates."),
    of_job("max_groups", "Rows that an evaluation has to do, over all candidates."),
    of_job("episodes", "Training episodes that were scored."),
    of_job("reward", "Mean reward of the last trained batch."),
    of_job("external_score", "Mean external score of the last validation; it is never trained on."),
    of_job("best_external_score", "Mean external score of the best validation so far."),
    of_job("baseline_external_score", "Mean external score of the validation before training."),
    of_job(
        "candidate_external_score",
        "Mean external score of a candidate of an evaluation, so far.",
        "",
        "candidate",
    ),
    of_job("cost", "Cost so far in US dollars by the price book, without what has no price.", "usd"),
    of_job("restarts", "Restarts of a role after failures.", "", "role", kind="counter"),
    of_job("pods_desired", "Pods that a role should have.", "", "role"),
    of_job("pods_ready", "Pods of a role that are ready.", "", "role"),
    of_job("created_timestamp_seconds", "When the job was created, in Unix time.", "seconds"),
    of_job("started_timestamp_seconds", "When the operator first handled the job.", "seconds"),
    of_job("updated_timestamp_seconds", "When the job last made progress.", "seconds"),
    of_job("completed_timestamp_seconds", "When the job succeeded or failed.", "seconds"),
)
