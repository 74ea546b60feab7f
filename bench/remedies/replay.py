"""What the signals of today make of a recorded curve: definitions change, and training takes hours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headway_analysis.signals.history import Job
from headway_analysis.signals.watch import Watch
from headway_api.signals import SignalName

REPLAYED: Final = (SignalName.REWARD_COLLAPSED, SignalName.ENTROPY_RISING, SignalName.POLICY_MISMATCH)
"""Signs that a job is changed for, and that reward, entropy, mismatch and age show."""
REWARDS: Final = (0.0, 1.0)
"""spec.reward.range of the demo's job."""
Raised = dict[SignalName, list[int]]


def again(steps: Mapping[str, Mapping[str, float]], lag: int) -> Raised:
    """Steps after which each sign would be raised now, of a job that was never changed.

    Args:
        steps: recorded figures, by step.
        lag: `maxStepsOffPolicy`, and how many steps old every batch is once there are so many.
    """
    watch, found, before = Watch(Job(*REWARDS, lag)), Raised(), set[SignalName]()
    for step, figures in sorted((int(step), figures) for step, figures in steps.items()):
        age = float(min(step - 1, lag))
        watch.step(step, {**figures, "staleness/lag_mean": age, "staleness/lag_max": age})
        now = {each.signal.name for each in watch.verdicts() if each.standing.state == "Raised"}
        for name in now - before:
            found.setdefault(name, []).append(step)
        before = now
    return {name: found[name] for name in REPLAYED if name in found}


def then(raised: Mapping[str, list[str]]) -> Raised:
    """Steps after which each of these signs was raised when the job ran."""
    found = {name: [int(step) for step, names in raised.items() if name in names] for name in REPLAYED}
    return {name: sorted(steps) for name, steps in found.items() if steps}


def summary(recorded: Mapping[str, Any], lag: int) -> str:
    """Both, in words. `recorded`: of the job that was never changed, as its file has it."""
    now, was = again(recorded["steps"], lag), then(recorded["raised"])
    return "; ".join(
        f"{name} after {_listed(now.get(name))}"
        + ("" if now.get(name) == was.get(name) else f" (then: {_listed(was.get(name))})")
        for name in REPLAYED
        if name in now or name in was
    )


def _listed(steps: list[int] | None) -> str:
    return ", ".join(map(str, steps)) if steps else "none"
