"""Judges a recorded curve with the present signals. Their definitions change, and training again takes
hours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headway_analysis.signals.history import Job
from headway_analysis.signals.watch import Watch
from headway_api.signals import SignalName

REPLAYED: Final = (SignalName.REWARD_COLLAPSED, SignalName.ENTROPY_RISING, SignalName.POLICY_MISMATCH)
"""Signals that lead to remedies, and need only the recorded reward, entropy, mismatch and age."""
REWARDS: Final = (0.0, 1.0)
"""The demo job's spec.reward.range."""
Raised = dict[SignalName, list[int]]


def again(steps: Mapping[str, Mapping[str, float]], lag: int) -> Raised:
    """Signal -> steps after which it would be raised with the present definitions, in a job without remedies.

    Args:
        steps: recorded metrics, by step.
        lag: `maxStepsOffPolicy`. Every batch is assumed to be this old, once there are as many steps.
    """
    watch, found, before = Watch(Job(*REWARDS, lag)), Raised(), set[SignalName]()
    for step, metrics in sorted((int(step), metrics) for step, metrics in steps.items()):
        age = float(min(step - 1, lag))
        watch.step(step, {**metrics, "staleness/lag_mean": age, "staleness/lag_max": age})
        now = {each.signal.name for each in watch.verdicts() if each.standing.state == "Raised"}
        for name in now - before:
            found.setdefault(name, []).append(step)
        before = now
    return {name: found[name] for name in REPLAYED if name in found}


def then(raised: Mapping[str, list[str]]) -> Raised:
    """Signal -> steps after which it was raised when the job ran."""
    found = {name: [int(step) for step, names in raised.items() if name in names] for name in REPLAYED}
    return {name: sorted(steps) for name, steps in found.items() if steps}


def summary(recorded: Mapping[str, Any], lag: int) -> str:
    """The results of `then` and `again` as text. `recorded` is the recorded job without remedies."""
    now, was = again(recorded["steps"], lag), then(recorded["raised"])
    return "; ".join(
        f"{name} after {_listed(now.get(name))}"
        + ("" if now.get(name) == was.get(name) else f" (then: {_listed(was.get(name))})")
        for name in REPLAYED
        if name in now or name in was
    )


def _listed(steps: list[int] | None) -> str:
    return ", ".join(map(str, steps)) if steps else "none"
