"""Panels that show a job's health: signals, outcomes of episodes, and the agent's behaviour."""

from __future__ import annotations

from typing import Any, Final

from headway_analysis.signals.catalogue import SIGNALS
from headway_analysis.signals.judges import behaviour
from headway_api.signals import SignalName
from headway_dashboards import remedies
from headway_dashboards.fleet import SIGNAL_STATES
from headway_dashboards.panels import PER_MINUTE, YELLOW, Limit, Query, curves, metric_curves, states, table
from headway_dashboards.promql import BY_JOB, JOB, named, narrowed, of, per_second, total, value

TRUNCATED: Final = {
    SignalName.TURNS_TRUNCATED: behaviour.MAX_CUT,
    SignalName.CONTEXT_FULL: behaviour.MAX_FULL,
    SignalName.EPISODES_TIMED_OUT: behaviour.MAX_LATE,
    SignalName.TURNS_EXHAUSTED: behaviour.MAX_EXHAUSTED,
}
"""Signal -> share of episodes that is the signal's threshold."""
CONDITIONS: Final = {"1": ("True", "blue"), "0": ("False", "orange"), "-1": ("Unknown", "text")}


def panels() -> list[Any]:
    """The health panels of the job board."""
    return [*_signals(), *remedies.panels(), *_endings(), *_behaviour(), *_age()]


def _first(name: SignalName, limit: float) -> str:
    """A sentence with a signal's name, its threshold, and what to change first."""
    (signal,) = (each for each in SIGNALS if each.name == name)
    return f"{name} (over {limit:.0%}): {signal.advice}"


def _signals() -> list[Any]:
    by_status = {
        status: of("job/condition", narrowed(JOB, status=status)) for _, (status, _) in CONDITIONS.items()
    }
    by_type = {status: f"max by ({BY_JOB}, type) ({series})" for status, series in by_status.items()}
    conditions = f"{by_type['True']} or 0 * {by_type['False']} or -1 * {by_type['Unknown']}"
    return [
        states(
            "Signals",
            "As the coordinator judges them step by step; docs/signals.md has what each means. "
            "One without a band is unknown: too few steps, or a metric that this job has not.",
            Query(value("signal/state"), "{{job_name}} {{signal}}"),
            SIGNAL_STATES,
            span=16,
            height=14,
        ),
        table(
            "Signals now",
            "The number that each is judged by, and its threshold.",
            [
                Query(of("signal/state"), "state"),
                Query(of("signal/value"), "value"),
                Query(of("signal/threshold"), "threshold"),
            ],
            keys=["job_name", "signal"],
            words={"state": SIGNAL_STATES},
            span=8,
            height=14,
        ),
        states(
            "Conditions",
            "As in the job's status. What is good differs: Stalled should be False, Ready should be True.",
            Query(conditions, "{{job_name}} {{type}}"),
            CONDITIONS,
            span=24,
            height=10,
        ),
    ]


def _endings() -> list[Any]:
    return [
        curves(
            "How episodes end",
            "Share of the batch's episodes with each outcome. "
            "InfraError is a fault of the environment or its pods. "
            f"{_first(SignalName.PERMANENT_FAILURES, behaviour.MAX_FAILED)}",
            [Query(named("episodes/outcome_{name}_rate", "outcome"), "{{job_name}} {{outcome}}")],
            unit="percentunit",
            limits=[Limit(behaviour.MAX_FAILED, YELLOW)],
        ),
        metric_curves(
            "Truncation by kind",
            "\n".join(
                [
                    "Share of the batch's episodes that a limit cut, and what to change first:",
                    "",
                    *(f"- {_first(name, limit)}" for name, limit in TRUNCATED.items()),
                ]
            ),
            {
                "turns": "episodes/turn_limit_rate",
                "tokens": "episodes/max_tokens_rate",
                "context": "episodes/context_limit_rate",
                "time": "episodes/time_limit_rate",
            },
            limits=[Limit(limit, YELLOW) for limit in sorted({*TRUNCATED.values()})],
        ),
        metric_curves(
            "Tool calls that fail",
            "If malformed calls rise, the policy is losing the format.",
            {
                "turns with one that is malformed": "rollout/turns/malformed_tool_call_rate",
                "malformed, of all calls": "rollout/tool_calls/malformed_share",
                "answered with an error, of those read": "rollout/tool_calls/failed_share",
            },
        ),
    ]


def _behaviour() -> list[Any]:
    return [
        curves(
            "Tool calls of an episode",
            "By tool. A tool whose calls grow without the reward has been found to pay, or to stall.",
            [
                Query(value("rollout/tool_calls/mean"), "{{job_name}} all"),
                Query(named("rollout/tool_calls_of/{name}", "tool"), "{{job_name}} {{tool}}"),
            ],
        ),
        metric_curves(
            "Length",
            "Sampled tokens. Answers that grow without end fill the context.",
            {
                "of a turn, mean": "rollout/tokens/response_mean",
                "of a turn, most": "rollout/tokens/response_max",
                "of an episode, mean": "rollout/tokens/episode_mean",
            },
        ),
        metric_curves(
            "Turns of an episode",
            "At agent.builtin.maxTurns an episode is cut.",
            {"mean": "rollout/turns/mean", "maximum": "rollout/turns/max"},
        ),
        metric_curves(
            "Repetition",
            "Share of a turn's 8-grams that occurred earlier in the same turn. Text loops show here first.",
            {"mean": "rollout/repetition/mean", "largest of a turn": "rollout/repetition/max"},
        ),
        curves(
            "What the environment reports",
            "Mean of each number that it sends with its rewards.",
            [Query(named("rollout/reward_metrics/{name}", "number"), "{{job_name}} {{number}}")],
        ),
        metric_curves(
            "Token histories that drifted",
            "A conversation was rendered otherwise than it was sampled: its episode becomes several rows.",
            {
                "of episodes": "episodes/fork_rate",
                "of turns": "rollout/turns/fork_rate",
                "of trained tokens, in branches": "rollout/rows/branch_token_share",
            },
        ),
    ]


def _age() -> list[Any]:
    ended = total(per_second(of("episodes/finished")), "outcome", "purpose")
    retried = total(per_second(of("episodes/retried")), "purpose")
    given_up = total(per_second(of("rollout/abandoned_groups")), "reason")
    return [
        metric_curves(
            "Staleness",
            "Age of the tokens that are trained, in steps. algorithm.maxStepsOffPolicy bounds it.",
            {
                "mean": "staleness/lag_mean",
                "maximum": "staleness/lag_max",
                "maximum, as the learner saw it": "training/lag_max",
            },
        ),
        curves(
            "Episodes ended",
            "By outcome and purpose; and those started again after an InfraError.",
            [
                Query(f"60 * {ended}", "{{job_name}} {{purpose}} {{outcome}}"),
                Query(f"60 * {retried}", "{{job_name}} {{purpose}} started again"),
            ],
            unit=PER_MINUTE,
        ),
        curves(
            "Abandoned groups",
            "Too few scored tries, too old, or no step left. The coordinator's log has group-abandoned.",
            [Query(f"60 * {given_up}", "{{job_name}} {{reason}}")],
            unit=PER_MINUTE,
        ),
    ]
