"""The board of all jobs, from the operator's metrics, which outlive the jobs' pods."""

from __future__ import annotations

from typing import Any, Final

from headway_api.metrics import prometheus_name
from headway_dashboards import board
from headway_dashboards.board import Board, Section
from headway_dashboards.panels import (
    GREEN,
    GREY,
    PER_MINUTE,
    RED,
    YELLOW,
    Limit,
    Query,
    curves,
    number,
    states,
    table,
)
from headway_dashboards.promql import (
    BY_JOB,
    FLEET,
    growth,
    of,
    per_second,
    quantile_by,
    shared,
    summed,
    total,
    value,
)

SIGNAL_STATES: Final = {"0": ("Clear", GREEN), "1": ("Suspect", YELLOW), "2": ("Raised", RED)}
OF_JOB: Final = "{{namespace}}/{{job_name}}"
KEYS: Final = ("namespace", "kind", "job_name")
TO_JOB: Final = (
    "/d/headway-job?${datasource:queryparam}&var-namespace=${__data.fields.namespace}"
    "&var-kind=${__data.fields.kind}&var-job_name=${__data.fields.job_name}&${__url_time_range}"
)
"""Link from a table cell to the job board, for the job of the cell's row."""


def of_fleet(name: str) -> str:
    """A query for the gauge `name` of every chosen job."""
    return value(name, FLEET)


def worst() -> str:
    """A query for the worst state among each job's signals."""
    return f"max by ({BY_JOB}) ({of_fleet('job/signal')})"


def made() -> Board:
    """The fleet board."""
    return Board(
        "fleet",
        "Headway / Fleet",
        "Every job of the chosen namespaces: state, progress, scores, cost, signals and alerts.",
        [board.namespace(), board.kind()],
        [
            Section("Now", _now()),
            Section("Jobs", _jobs()),
            Section("Over time", _over_time()),
            Section("Signals and alerts", _signals()),
            Section("Operator", _operator(), folded=True),
        ],
    )


def _now() -> list[Any]:
    raised = f"sum({of_fleet('job/signal')} == bool 2)"
    return [
        number(
            "Jobs by state",
            "How many jobs are in each state.",
            Query(summed(of_fleet("operator/jobs"), "state"), "{{state}}"),
            span=8,
        ),
        number(
            "At work",
            "Jobs that have not ended, and are not suspended.",
            Query(f"sum({of_fleet('job/active')})", "active"),
        ),
        number(
            "Signals raised",
            "Signals that are raised, over all jobs. The table below names them.",
            Query(raised, "raised"),
            limits=[Limit(1)],
        ),
        number(
            "Cost so far",
            "Of all jobs that are still there, by the price book.",
            Query(f"sum({of_fleet('job/cost')})", "cost"),
            unit="currencyUSD",
        ),
        number(
            "Cost an hour",
            "At the pace of now.",
            Query(f"sum({growth('job/cost', FLEET)})", "cost an hour"),
            unit="currencyUSD",
        ),
    ]


def _jobs() -> list[Any]:
    columns = [
        Query(of("job/info", FLEET), ""),
        Query(of("job/step", FLEET), "step"),
        Query(of("job/max_steps", FLEET), "of"),
        Query(of("job/reward", FLEET), "reward"),
        Query(of("job/external_score", FLEET), "external score"),
        Query(of("job/best_external_score", FLEET), "best"),
        Query(of("job/baseline_external_score", FLEET), "before training"),
        Query(of("job/signal", FLEET), "worst signal"),
        Query(total(of("job/restarts", FLEET)), "restarts"),
        Query(of("job/cost", FLEET), "cost"),
        Query(f"time() - {of('job/updated_timestamp_seconds', FLEET)}", "last progress"),
    ]
    return [
        table(
            "Jobs",
            "One row a job, as its status says. The name leads to the job's own board.",
            columns,
            keys=KEYS,
            more=["state", "reason"],
            units={"cost": "currencyUSD", "last progress": "s"},
            words={"worst signal": SIGNAL_STATES},
            links={"job_name": ("Open the job", TO_JOB)},
            height=10,
        )
    ]


def _over_time() -> list[Any]:
    return [
        curves("Step", "Training steps completed and checkpointed.", [Query(of_fleet("job/step"), OF_JOB)]),
        curves("Reward", "Mean reward of the last trained batch.", [Query(of_fleet("job/reward"), OF_JOB)]),
        curves(
            "External score",
            "Of the last validation. It is never trained on: it should rise with the reward.",
            [Query(of_fleet("job/external_score"), OF_JOB)],
        ),
        curves(
            "Cost", "So far, by the price book.", [Query(of_fleet("job/cost"), OF_JOB)], unit="currencyUSD"
        ),
        curves(
            "Budgets of namespaces",
            "Share of each limit of an RLBudget that is used, and that is used or granted to jobs.",
            [
                Query(
                    f"{shared('namespace_budget/spent')} / {shared('namespace_budget/limit')}",
                    "{{namespace}} {{limit}} used",
                ),
                Query(
                    f"1 - {shared('namespace_budget/left')} / {shared('namespace_budget/limit')}",
                    "{{namespace}} {{limit}} granted",
                ),
            ],
            unit="percentunit",
        ),
        curves(
            "Cost an hour",
            "At the pace of each moment.",
            [Query(growth("job/cost", FLEET), OF_JOB)],
            unit="currencyUSD",
        ),
        curves(
            "Pods that are missing",
            "Pods that a role is to have and that are not ready.",
            [
                Query(
                    f"sum by ({BY_JOB}) ({of_fleet('job/pods_desired')} - {of_fleet('job/pods_ready')})",
                    OF_JOB,
                )
            ],
            lowest=0,
        ),
    ]


def _signals() -> list[Any]:
    return [
        states(
            "Worst signal of each job",
            "The gravest state among a job's signals.",
            Query(worst(), OF_JOB),
            SIGNAL_STATES,
            span=12,
        ),
        table(
            "Signals that are not clear",
            "docs/signals.md says what each means and what to change first.",
            [Query(f"{of('job/signal', FLEET)} > 0", "state")],
            keys=[*KEYS, "signal"],
            words={"state": SIGNAL_STATES},
            links={"job_name": ("Open the job", TO_JOB)},
            span=12,
            height=8,
        ),
        table(
            "Alerts that fire",
            "Each has a runbook: the annotation runbook_url.",
            [Query(f'ALERTS{{{board.FIRING}, namespace=~"$namespace|"}}', "firing")],
            keys=["alertname", "severity", "namespace", "job_name"],
            span=24,
            height=7,
        ),
    ]


def _operator() -> list[Any]:
    """Panels about the operators of all releases. An operator's own metrics are in its release's
    namespace."""
    took = [quantile_by(share, "operator/reconcile_seconds", "", "namespace") for share in (0.5, 0.99)]
    failed = summed(per_second(of("operator/reconcile_errors", "")), "reason")
    applied = summed(per_second(of("operator/applies", "")), "kind", "result")
    return [
        curves(
            "A reconcile",
            "How long one of one job takes.",
            [
                Query(took[0], "{{namespace}} half within"),
                Query(took[1], "{{namespace}} 99 % within"),
            ],
            unit="s",
        ),
        curves("Reconciles retried", "By reason.", [Query(f"60 * {failed}", "{{reason}}")], unit=PER_MINUTE),
        curves(
            "Objects compared with the plan",
            "By kind and result.",
            [Query(f"60 * {applied}", "{{kind}} {{result}}")],
            unit=PER_MINUTE,
        ),
        curves(
            "Jobs that wait for a worker, or have one",
            "A queue that grows says that the operator cannot keep up.",
            [Query(of("operator/queue_depth", ""), "{{namespace}} {{pod}}")],
        ),
        curves(
            "Since a reconcile last succeeded",
            "Jobs are looked at every few minutes at least.",
            [Query(of("operator/last_success_age_seconds", ""), "{{namespace}} {{pod}}")],
            unit="s",
        ),
        states(
            "Who leads",
            "One replica of each release.",
            Query(f"max by (namespace, pod) ({prometheus_name('operator/leader')})", "{{namespace}} {{pod}}"),
            {"0": ("waits", GREY), "1": ("leads", GREEN)},
            span=8,
        ),
    ]
