"""The board of sandboxes: their pool, how long episodes wait for a sandbox, and failures."""

from __future__ import annotations

from typing import Any

from headway_dashboards import board
from headway_dashboards.board import Board, Section
from headway_dashboards.panels import PER_MINUTE, Limit, Query, curves, number
from headway_dashboards.promql import (
    JOB,
    counted,
    narrowed,
    of,
    per_second,
    quantile,
    quantile_by,
    total,
)


def made() -> Board:
    """The sandbox board."""
    return Board(
        "sandboxes",
        "Headway / Sandboxes",
        "The pool, how long episodes wait for a sandbox, how long one takes to start, and how they are lost.",
        [board.namespace(), board.kind(), board.job_name()],
        [Section("Now", _now()), Section("Pool", _pool()), Section("Failures", _failures())],
    )


def _in_state(state: str) -> str:
    return of("sandbox/pool_size", narrowed(JOB, state=state))


def _now() -> list[Any]:
    lost = f"60 * sum({per_second(of('sandbox/failures'))})"
    return [
        number("Leased", "Each by one episode.", Query(f"sum({_in_state('leased')})", "leased")),
        number("Ready", "Started ahead of need.", Query(f"sum({_in_state('ready')})", "ready")),
        number(
            "Starting", "Created, and not yet answering.", Query(f"sum({_in_state('starting')})", "starting")
        ),
        number(
            "Episodes that wait",
            "For a sandbox. Over 0 for long: raise warmPool.max, or give the cluster room.",
            Query(f"sum({of('sandbox/waiting')})", "waiting"),
            limits=[Limit(1)],
        ),
        number("Lost", "A minute, by any cause.", Query(lost, "lost"), unit=PER_MINUTE, limits=[Limit(0.1)]),
        number(
            "Start",
            "95 % of them answer within.",
            Query(quantile_by(0.95, "sandbox/start_seconds", JOB), "start"),
            unit="s",
        ),
    ]


def _pool() -> list[Any]:
    leases = [
        Query(
            quantile(share, "sandbox/lease_seconds", "start"),
            f"{{{{job_name}}}} {{{{start}}}} {words}",
        )
        for share, words in ((0.5, "half within"), (0.95, "95 % within"))
    ]
    return [
        curves(
            "Pool",
            "Sandboxes by state.",
            [Query(total(of("sandbox/pool_size"), "state"), "{{job_name}} {{state}}")],
            stacked=True,
            span=12,
        ),
        curves(
            "Episodes that wait for a sandbox",
            "And those that run.",
            [
                Query(total(of("sandbox/waiting")), "{{job_name}} waiting"),
                Query(total(of("episodes/in_flight")), "{{job_name}} running"),
            ],
            span=12,
        ),
        curves(
            "From asking for a sandbox to having one",
            "Warm: a sandbox was ready. Cold: the episode waited for one.",
            leases,
            unit="s",
        ),
        curves(
            "From creating a sandbox to its first answer",
            "Scheduling, image, and the environment's import.",
            [
                Query(quantile(0.5, "sandbox/start_seconds"), "{{job_name}} half within"),
                Query(quantile(0.95, "sandbox/start_seconds"), "{{job_name}} 95 % within"),
            ],
            unit="s",
        ),
        curves(
            "A tool call",
            "From sending it to its answer, as the coordinator sees it.",
            [
                Query(quantile(0.5, "sandbox/tool_call_seconds"), "{{job_name}} half within"),
                Query(quantile(0.95, "sandbox/tool_call_seconds"), "{{job_name}} 95 % within"),
            ],
            unit="s",
        ),
        curves(
            "Leases",
            "By whether a sandbox was ready.",
            [
                Query(
                    f"60 * {counted('sandbox/lease_seconds', 'start')}",
                    "{{job_name}} {{start}}",
                ),
            ],
            unit=PER_MINUTE,
        ),
        curves(
            "Tool calls",
            "Answered or not.",
            [
                Query(
                    f"60 * {counted('sandbox/tool_call_seconds')}",
                    "{{job_name}}",
                ),
            ],
            unit=PER_MINUTE,
        ),
        curves(
            "In use, by the bill",
            "Sandbox seconds a second.",
            [Query(total(per_second(of("usage/sandbox_seconds"))), "{{job_name}}")],
        ),
    ]


def _failures() -> list[Any]:
    destroyed = total(per_second(of("sandbox/destroyed")), "reason")
    lost = total(per_second(of("sandbox/failures")), "reason")
    return [
        curves(
            "Lost, or not to be had",
            "By reason, in the API server's or the kubelet's words. PodGone: one with an episode in it.",
            [Query(f"60 * {lost}", "{{job_name}} {{reason}}")],
            unit=PER_MINUTE,
        ),
        curves(
            "Created",
            "A sandbox serves one episode.",
            [Query(f"60 * {total(per_second(of('sandbox/created')))}", "{{job_name}}")],
            unit=PER_MINUTE,
        ),
        curves(
            "Destroyed",
            "By reason. released is as it should be.",
            [Query(f"60 * {destroyed}", "{{job_name}} {{reason}}")],
            unit=PER_MINUTE,
        ),
    ]
