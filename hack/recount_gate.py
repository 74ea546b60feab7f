"""The gate of docs/evaluation.md in plain Python, for `recount_eval.py`. It uses none of Headway's own
code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import fsum
from types import MappingProxyType
from typing import Any, NamedTuple

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
"""Function from candidate, metric and task to the values of the tries."""
EQUAL = 1e-12
"""Means whose relative difference is smaller count as equal."""
RANK = ["Passed", "TooFewRows", "Refused", "Error"]
BEST_HIGH = SCORES | {"success", "success_by_reward"}
OF_CALLS = ("failed_tool_calls", "malformed_tool_calls")


class Check(NamedTuple):
    """The verdict of a condition, and the numbers on which it is based."""

    verdict: str
    numbers: Mapping[str, float | None] = MappingProxyType({})


def worst(checks: Iterable[Check]) -> str:
    """The gate's verdict, which is the verdict of its worst condition."""
    return max((each.verdict for each in checks), key=RANK.index, default="Error")


def conditions(
    gate: Json,
    samples: Samples,
    failed: Collection[str] = (),
    rewards: Sequence[float] = (0.0, 1.0),
    suites: Collection[str] = (),
) -> Iterator[Check]:
    """Judge each condition of the gate: Passed, TooFewRows, Refused or Error.

    Lost tries are a condition only if there are too many. Such conditions come last.

    Args:
        rewards: the ends of the range of rewards, except in suites.
        suites: names of the suites.
    """

    def ends(name: str, task: str, *of: Values | None) -> Sequence[float] | None:
        if name == "reward" and task not in suites:
            return rewards
        return (0.0, 1.0) if all(each and is_share(name, each.values()) for each in of) else None

    metric, judged = gate.get("metric", "external_score"), gate.get("task", "all")
    both = [gate[who] for who in ("candidate", "mustBeat") if gate.get(who) is not None]
    yield from (Check("Error") for name in both if name in failed)
    if gate.get("minimum") is not None:
        mine = samples(gate["candidate"], metric, judged)
        yield minimum(gate, metric, mine, ends(metric, judged, mine))
    if gate.get("mustBeat") is not None:
        yield from compared(gate, samples, ends)
    tasks = {judged, *(each.get("task", judged) for each in gate.get("noWorse", []))}
    yield from losses(gate, [samples(name, "infra_error", task) for task in tasks for name in both])


def compared(gate: Json, samples: Samples, ends: Callable[..., Sequence[float] | None]) -> Iterator[Check]:
    """The conditions that compare the candidate with the baseline `mustBeat`."""
    metric, judged = gate.get("metric", "external_score"), gate.get("task", "all")
    both = [gate["candidate"], gate["mustBeat"]]
    wanted = [(metric, judged, float(gate.get("margin", 0)))]
    for each in gate.get("noWorse", []):
        wanted.append((each["metric"], each.get("task", judged), -float(each.get("margin", 0))))
    for name, task, least in wanted:
        ours, theirs = (samples(who, name, task) for who in both)
        if ours is None or theirs is None:
            below = "cost" if name == "cost_per_success" else "infra_error"
            tried = samples(both[0], below, task) and samples(both[1], below, task)
            yield Check(without(name, ours is not None) if tried else "Error")
        else:
            yield is_better(name, ours, theirs, least, ends(name, task, ours, theirs))


def losses(gate: Json, found: Iterable[Values | None]) -> list[Check]:
    """A failed condition for each sample that lost too many tries, sorted by the number of lost tries."""
    limit, checks = float(gate.get("maxLost", "0.05")), []
    for tries in found:
        lost = fsum(each.top for each in tries.values()) if tries else 0.0
        if tries and lost / len(tries) > limit:
            checks.append(Check("TooFewRows", {"lost": lost, "tries": len(tries), "maxLost": limit}))
    return sorted(checks, key=lambda each: [*each.numbers.values()])


def without(name: str, candidate_has_it: bool) -> str:
    """The verdict if a measure does not exist, because there is no success to divide the cost by, or no tool
    call.
    """
    if name == "cost_per_success":
        return "Passed" if candidate_has_it else "Refused"
    return "TooFewRows" if name in OF_CALLS else "Error"


def minimum(gate: Json, name: str, found: Values | None, ends: Sequence[float] | None) -> Check:
    """The condition that the metric reaches the minimum."""
    known = estimate(name, found) if found is not None and better_high(name) else None
    wanted = float(gate["minimum"])
    if known is None or found is None:
        return Check("Error")
    floor = None
    if gate.get("minimumOf") != "Value" and known["floor"] is not None and known["clusters"] >= ENOUGH:
        floor = known["floor"] if ends is None else min(known["floor"], least_value(found, ends[0]))
    numbers = {key: known[key] for key in ("value", "low", "high")} | {"minimum": wanted, "shown": floor}
    if known["value"] < wanted - EQUAL * max(1, abs(wanted)):
        return Check("Refused", numbers)
    passed = gate.get("minimumOf") == "Value" or (floor is not None and floor >= wanted)
    return Check("Passed" if passed else "TooFewRows", numbers)


def is_better(name: str, ours: Values, theirs: Values, least: float, ends: Sequence[float] | None) -> Check:
    """The condition that the difference, in the better direction, is surely above `least`."""
    found, sign = difference(name, ours, theirs), 1 if better_high(name) else -1
    if found is None:
        return Check("TooFewRows")
    floor = None
    if found["low"] is not None:
        floor = found["low"] if sign > 0 else -found["high"]
        floor = floor if ends is None else min(floor, least_gain(ours, theirs, sign, ends[0] - ends[1]))
    numbers = {key: found[key] for key in ("candidate", "baseline", "value", "low", "high")}
    numbers |= {"margin": abs(least), "shown": floor}
    if sign * found["value"] <= least + EQUAL * max(1, abs(least)):
        return Check("Refused", numbers)
    return Check("Passed" if floor is not None and floor > least else "TooFewRows", numbers)


def better_high(name: str) -> bool:
    """Whether a higher value of a measure is better."""
    return name in BEST_HIGH or name.startswith(("pass_", "metric_"))
