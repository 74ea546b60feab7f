"""Judges of the agent's behaviour: how its episodes end, how long they are, and how many tools they call."""

from __future__ import annotations

from typing import Final

from headway_analysis.signals.definition import Judge, Level, Reading
from headway_analysis.signals.evidence import EPISODES, above, level, pooled
from headway_analysis.signals.history import History
from headway_analysis.signals.judges.learning import BACK, LAST, SCORE, WINDOW, rise

CALLS: Final = "rollout/tool_calls/mean"
LENGTH: Final = "rollout/tokens/response_mean"
REPEATED: Final = "rollout/repetition/mean"
FAILED: Final = "episodes/outcome_InfraError_rate"
CUT: Final = "episodes/max_tokens_rate"
FULL: Final = "episodes/context_limit_rate"
LATE: Final = "episodes/time_limit_rate"
EXHAUSTED: Final = "episodes/turn_limit_rate"
MALFORMED: Final = "episodes/malformed_tool_call_rate"

MAX_FAILED: Final = 0.01
MAX_CUT: Final = 0.05
MAX_FULL: Final = 0.05
MAX_LATE: Final = 0.05
MAX_EXHAUSTED: Final = 0.10
"""The five thresholds up to here are those of the practice guide."""

MAX_MALFORMED: Final = 0.2
LONGER: Final = 1.5
MORE_CALLS: Final = 1.25
REPETITIVE: Final = 0.1

WINDOWS: Final = (5, 10, 25)
"""Numbers of last steps over which episodes are pooled: a high rate shows in few steps, a low one in many."""


def number_of(name: str) -> str:
    """How `rate` computes its number, in words."""
    steps = ", ".join(map(str, WINDOWS[:-1]))
    return (
        f"Mean of `{name}` over the last {steps} and {WINDOWS[-1]} steps, weighted by `{EPISODES}`. The "
        "signal takes the window whose 99 % interval (Clopper and Pearson) has the highest lower bound. If "
        "the steps vary more than independent episodes would, the interval assumes fewer episodes (Rao and "
        "Scott's design effect)."
    )


def threshold_of(threshold: float) -> str:
    """When a reading of `rate` is over or clear, in words."""
    return (
        f"Bad if both the interval's lower bound and the share of the last {WINDOWS[0]} steps are above "
        f"{threshold:.0%}. Clear if the share of the last {WINDOWS[0]} steps is {threshold:.0%} or less."
    )


BURSTS: Final = (
    "Episodes of one batch are alike. So a burst in two or three batches is two or three events, not "
    "hundreds, and it passes. An interval that counts such episodes as independent would be far too narrow."
)
"""Why a rate's interval takes into account how much batches differ."""
RAO_SCOTT: Final = "Rao and Scott 1992, A simple method for the analysis of clustered binary data"


def growth_of(name: str) -> str:
    """How `growing` computes its number, in words."""
    return (
        f"Ratio: the median of `{name}` in the last {LAST} steps, divided by a baseline. The baseline is the "
        f"smaller of two medians of {WINDOW} steps: the first ones, and those that ended {BACK} steps ago."
    )


def growth_threshold(factor: float) -> str:
    """When a reading of `growing` is over or clear, in words."""
    return (
        f"Bad above {factor:g} times the baseline, unless the external score surely rises (over {BACK} "
        f"steps). Clear at {1 + (factor - 1) / 2:g} times or less, or if the score surely rises."
    )


def rate(name: str, what: str, threshold: float) -> Judge:
    """A judge of a share of episodes, by the window of `WINDOWS` whose interval has the highest lower bound.

    Args:
        name: the metric with the share.
        what: what these episodes did, for the message.
        threshold: a reading is over if both this lower bound and the share of the shortest window exceed it.
    """

    def judge(history: History) -> Reading | None:
        if history.latest(name) is None:
            return None
        found = [(share, steps) for steps in WINDOWS if (share := pooled(history, name, steps)) is not None]
        if not found:
            return None
        share, steps = max(found, key=lambda each: each[0].low)
        observed = (
            f"{share.value:.1%} of {share.total:.0f} episodes of {steps} steps {what} "
            f"({share.low:.1%} to {share.high:.1%})"
        )
        recent = found[0][0]
        state = (
            Level.OVER
            if share.low > threshold and recent.value > threshold
            else Level.CLEAR
            if recent.value <= threshold
            else Level.BETWEEN
        )
        return Reading(state, share.value, threshold, observed, share.low, share.high)

    return judge


def growing(name: str, what: str, factor: float, least: float) -> Judge:
    """A judge of a quantity that grows while the external score does not.

    Args:
        name: the metric with the quantity.
        what: the quantity in words, for the message.
        factor: a reading is over if the quantity is more than this many times its baseline.
        least: the smallest baseline; a lower one counts as this.
    """

    def judge(history: History) -> Reading | None:
        first = level(history.first(name, WINDOW), WINDOW)
        before = level(history.recent(name, WINDOW, until=history.now - BACK), WINDOW)
        now = level(history.recent(name, LAST), LAST)
        if first is None or now is None or history.latest(name) is None:
            return None
        base = max(least, min(first, before) if before is not None else first)
        times = now / base
        observed = f"{what} are {now:.3g} on average, {times:.2g} times what they were ({base:.3g})"
        score = rise(history, SCORE)
        if score is not None and score.rises:
            return Reading(Level.CLEAR, times, factor, f"{observed}, and the external score rises")
        return Reading(above(times, factor, 1 + (factor - 1) / 2), times, factor, observed)

    return judge


def repetition(history: History) -> Reading | None:
    """The share of a turn's 8-grams that occurred earlier in the turn."""
    now = level(history.recent(REPEATED, LAST), LAST)
    if now is None or history.latest(REPEATED) is None:
        return None
    observed = f"{now:.0%} of a turn repeats what it said before (phrases of 8 tokens)"
    return Reading(above(now, REPETITIVE, REPETITIVE / 2), now, REPETITIVE, observed)
