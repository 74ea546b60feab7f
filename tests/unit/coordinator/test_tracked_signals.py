"""At which step each state of a signal is logged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import job_rig
import pytest
from episodes import a_group
from played_jobs import a_small_spec
from raised import over_from, signal

from headway_api.signals import SignalName as S
from headway_coordinator.metrics.steps import StepMetrics
from headway_coordinator.signals import Signals
from headway_coordinator.state import State

VALIDATION = {"val/reward/mean": 0.5}
BY_STEP, BY_VALIDATION, BY_EITHER = S.REPETITION, S.VALIDATION_DIVERGED, S.REWARD_FLAT
CATALOGUE = (
    replace(signal(BY_STEP, over_from(2)), clock="step"),
    replace(signal(BY_VALIDATION, over_from(2)), clock="validation"),
    replace(signal(BY_EITHER, over_from(2)), clock="either"),
)


class Tracker:
    """A tracker that records what is logged at each step."""

    def __init__(self) -> None:
        self.logged: dict[int, list[dict[str, float]]] = {}

    def log(self, found: Mapping[str, float], step: int, at_ms: int, *, again: bool) -> None:
        states = {name: value for name, value in found.items() if name.startswith("signal/state/")}
        self.logged.setdefault(step, []).append(states)


def states(value: float, *names: S) -> dict[str, float]:
    return {f"signal/state/{name}": value for name in names}


@pytest.mark.parametrize("validates", [True, False])
def test_a_state_is_logged_with_the_step_or_validation_judged(validates: bool) -> None:
    of = a_small_spec()
    often = of.evaluation.model_copy(update={"every_steps": 1 if validates else 0})
    of = of.model_copy(update={"evaluation": often})
    metrics, tracker = StepMetrics(of, Signals(of, catalogue=CATALOGUE)), Tracker()
    metrics.tracker = tracker  # type: ignore[assignment]
    by_step, by_validation = [BY_STEP], [BY_VALIDATION]
    (by_validation if validates else by_step).append(BY_EITHER)
    for step, value in ((1, 0.0), (2, 2.0)):
        groups = [a_group(f"t0-00000{step}", [1.0, 0.0], step=step - 1)]
        reports = [job_rig.report(each) for each in range(step + 1)]
        metrics.batch(State(reports=reports, last_batch=groups), again=False)
        metrics.validation(step, VALIDATION, again=False)
        assert tracker.logged[step] == [states(value, *by_step), states(value, *by_validation)]
