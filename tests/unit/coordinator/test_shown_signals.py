"""Which signals fit a job's status, and where the others are shown."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from job_rig import spec
from raised import signal

from headway_analysis.signals.catalogue import SIGNALS
from headway_analysis.signals.definition import Level, Reading, Signal
from headway_analysis.signals.history import History
from headway_api.signals import MAX_SHOWN_SIGNALS, STATE_VALUES, SignalName, SignalState
from headway_coordinator.signals import Signals

ORDER: tuple[SignalState, ...] = ("Raised", "Suspect", "Clear", "Unknown")
GRAVEST_FIRST = list(SignalName)


def in_state(name: SignalName, state: SignalState) -> Signal:
    """A signal that is in this state after one step."""
    level = Level.CLEAR if state == "Clear" else Level.OVER
    reading = Reading(level, 0.5, 0.4, "it is 0.5")

    def judge(history: History) -> Reading | None:
        return None if state == "Unknown" else reading

    return replace(signal(name, judge), raise_after=2 if state == "Suspect" else 1)


def judged(states: dict[SignalName, SignalState]) -> Signals:
    """The signals of a job after one step, in these states."""
    found = Signals(spec(), catalogue=[in_state(name, state) for name, state in states.items()])
    found.step(1, {})
    return found


def test_there_are_more_signals_than_fit_a_status() -> None:
    assert [each.name for each in SIGNALS] == GRAVEST_FIRST
    assert len(SIGNALS) > MAX_SHOWN_SIGNALS


@pytest.mark.parametrize("seed", range(20))
def test_a_status_holds_the_worst_by_state_and_then_severity(seed: int) -> None:
    rng = random.Random(seed)
    mixed = rng.sample(GRAVEST_FIRST, len(GRAVEST_FIRST))
    states = {name: rng.choice(ORDER) for name in mixed}
    shown = judged(states).status()
    wanted = sorted(states, key=lambda name: (ORDER.index(states[name]), GRAVEST_FIRST.index(name)))
    assert [(each.name, each.state) for each in shown] == [(n, states[n]) for n in wanted[:MAX_SHOWN_SIGNALS]]


@pytest.mark.parametrize("others", ["Suspect", "Clear", "Unknown"])
def test_unraised_signal_never_displaces_a_raised_one(others: SignalState) -> None:
    last = GRAVEST_FIRST[-1]
    shown = judged(dict.fromkeys(GRAVEST_FIRST, others) | {last: "Raised"}).status()
    assert (shown[0].name, shown[0].state) == (last, "Raised")


def test_condition_and_metrics_show_all_raised_signals() -> None:
    every = judged(dict.fromkeys(GRAVEST_FIRST, "Raised"))
    assert [each.name for each in every.status()] == GRAVEST_FIRST[:MAX_SHOWN_SIGNALS]
    healthy = every.condition()
    assert healthy.reason == GRAVEST_FIRST[0]
    assert [part.partition(":")[0] for part in healthy.message.split("; ")] == GRAVEST_FIRST
    states = {each.labels["signal"]: each.value for each in every.samples() if each.name == "signal/state"}
    assert states == dict.fromkeys(GRAVEST_FIRST, STATE_VALUES["Raised"])
