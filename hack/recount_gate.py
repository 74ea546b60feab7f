"""The gate of docs/evaluation.md in plain Python, for `recount_eval.py`: none of Headway's own code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from math import fsum
from typing import Any

from recount_statistics import (
    ENOUGH,
    SCORES,
    Values,
    difference,
    estimate,
    is_share,
    least_gain,
    least_value,
)

Json = Any
Samples = Callable[[str, str, str], Values | None]
"""Candidate, metric, task -> values."""
RANK = ["Passed", "TooFewRows", "Refused", "Error"]
BEST_HIGH = SCORES | {"success", "success_by_reward"}
OF_CALLS = ("failed_tool_calls", "malformed_tool_calls")


def worst(verdicts: Iterable[str]) -> str:
    """The gate's verdict: that of its worst condition."""
    return max(verdicts, key=RANK.index, default="Error")


def conditions(
    gate: Json,
    samples: Samples,
    failed: Collection[str] = (),
    rewards: Sequence[float] = (0.0, 1.0),
    suites: Collection[str] = (),
) -> Iterator[str]:
    """Passed, TooFewRows, Refused or Error for each condition. `rewards` are the ends of their range but in
    `suites`. Losses are a condition only where they are too large."""

    def ends(name: str, task: str, *of: Values | None) -> Sequence[float] | None:
        if name == "reward" and task not in suites:
            return rewards
        return (0.0, 1.0) if all(each and is_share(name, each.values()) for each in of) else None

    metric, judged = gate.get("metric", "external_score"), gate.get("task", "all")
    both = [gate[who] for who in ("candidate", "mustBeat") if gate.get(who) is not None]
    yield from ("Error" for name in both if name in failed)
    tasks = {judged, *(each.get("task", judged) for each in gate.get("noWorse", []))}
    for each in (samples(name, "infra_error", task) for task in tasks for name in both):
        if lost_too_many(gate, each):
            yield "TooFewRows"
    if gate.get("minimum") is not None:
        mine = samples(gate["candidate"], metric, judged)
        yield minimum(gate, metric, mine, ends(metric, judged, mine))
    if gate.get("mustBeat") is None:
        return
    wanted = [(metric, judged, float(gate.get("margin", 0)))]
    for each in gate.get("noWorse", []):
        wanted.append((each["metric"], each.get("task", judged), -float(each.get("margin", 0))))
    for name, task, least in wanted:
        ours, theirs = (samples(who, name, task) for who in both)
        if ours is None or theirs is None:
            below = "cost" if name == "cost_per_success" else "infra_error"
            tried = samples(both[0], below, task) and samples(both[1], below, task)
            yield without(name, ours is not None) if tried else "Error"
        else:
            yield is_better(name, ours, theirs, least, ends(name, task, ours, theirs))


def lost_too_many(gate: Json, found: Values | None) -> bool:
    """Whether too many tries were lost."""
    share = fsum(each.top for each in found.values()) / len(found) if found else 0.0
    return share > float(gate.get("maxLost", "0.05"))


def without(name: str, candidate_has_it: bool) -> str:
    """The verdict if there is no success to divide the cost by, or no tool call."""
    if name == "cost_per_success":
        return "Passed" if candidate_has_it else "Refused"
    return "TooFewRows" if name in OF_CALLS else "Error"


def minimum(gate: Json, name: str, found: Values | None, ends: Sequence[float] | None) -> str:
    """Whether the metric reaches the minimum."""
    known = estimate(name, found) if found is not None and better_high(name) else None
    wanted = float(gate["minimum"])
    if known is None or found is None:
        return "Error"
    if known["value"] < wanted:
        return "Refused"
    if gate.get("minimumOf") == "Value":
        return "Passed"
    if known["floor"] is None or known["clusters"] < ENOUGH:
        return "TooFewRows"
    floor = known["floor"] if ends is None else min(known["floor"], least_value(found, ends[0]))
    return "Passed" if floor >= wanted else "TooFewRows"


def is_better(name: str, ours: Values, theirs: Values, least: float, ends: Sequence[float] | None) -> str:
    """Whether the difference, in the better direction, is shown to be above `least`."""
    found, sign = difference(name, ours, theirs), 1 if better_high(name) else -1
    if found is None or found["low"] is None:
        return "TooFewRows"
    low, value = (found["low"], found["value"]) if sign > 0 else (-found["high"], -found["value"])
    if ends is not None:
        low = min(low, least_gain(ours, theirs, sign, ends[0] - ends[1]))
    return "Passed" if low > least else "Refused" if value <= least else "TooFewRows"


def better_high(name: str) -> bool:
    """Whether more of a measure is better."""
    return name in BEST_HIGH or name.startswith(("pass_", "metric_"))
