"""Signals that a test can raise at will. The signals of the catalogue have tests of their own."""

from __future__ import annotations

from datetime import datetime

from headway_analysis.signals.definition import Judge, Level, Reading, Signal
from headway_analysis.signals.history import History
from headway_analysis.signals.standing import SignalTrack
from headway_analysis.signals.watch import Verdict
from headway_api.config import Identity
from headway_api.signals import SignalName, SignalState
from headway_api.status import Pause
from headway_coordinator.pause import pause_of

ADVICE = "give the desk easier cases."


def signal(name: SignalName = SignalName.NOTHING_TO_TRAIN, judge: Judge = lambda history: None) -> Signal:
    """A signal that one reading raises, and one reading clears."""
    return Signal(
        name=name,
        judge=judge,
        meaning="a test raises it",
        number="none",
        threshold="none",
        reason="none",
        source="this test",
        advice=ADVICE,
        look_at=(),
        confirmed_by="nothing",
        raise_after=1,
        clear_after=1,
    )


def over_from(step: int) -> Judge:
    """A judge that is over the threshold from this step on."""

    def judge(history: History) -> Reading:
        level = Level.OVER if history.now >= step else Level.CLEAR
        return Reading(level, float(history.now), float(step), f"step {history.now} of {step} is over")

    return judge


def verdict(
    name: SignalName = SignalName.NOTHING_TO_TRAIN, since: int = 3, state: SignalState = "Raised"
) -> Verdict:
    """The verdict that a signal has this state since this step."""
    reading = Reading(Level.OVER, 0.0, 1.0, "0 of 4 groups had an advantage in 3 batches")
    return Verdict(signal(name), SignalTrack(state=state, since=since, reading=reading))


def a_pause(job: Identity, now: datetime, step: int = 12) -> Pause:
    """The pause that a coordinator writes for a job in which there is nothing to train."""
    found = [verdict(since=step)]
    return pause_of(job, step, found, found, now)
