"""Turns a signal's readings into a state, with hysteresis.

Several readings over the threshold, with no clear one in between, raise a signal. Several clear readings,
with none over the threshold in between, clear it again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway_analysis.signals.definition import Level, Reading, Signal
from headway_api.signals import SignalState


@dataclass(frozen=True)
class SignalTrack:
    """A signal's state, and the readings that led to it."""

    state: SignalState = "Unknown"
    since: int = 0
    """The step at which the signal came into this state."""
    over: int = 0
    """Number of readings over the threshold since the last clear reading."""
    clear: int = 0
    """Number of clear readings since the last reading over the threshold."""
    reading: Reading | None = None
    """The latest reading."""
    read: int = 0
    """Step of the latest reading."""


def after(signal: Signal, before: SignalTrack, reading: Reading | None, step: int) -> SignalTrack:
    """The state after a reading. A step without a reading changes nothing."""
    if reading is None:
        return before
    over, clear = before.over, before.clear
    if reading.level is Level.OVER:
        over, clear = (max(over + 1, signal.raise_after) if reading.sure else over + 1), 0
    elif reading.level is Level.CLEAR:
        over, clear = 0, clear + 1
    state = _state(signal, before.state, reading.level, over, clear)
    since = before.since if state == before.state else step
    return replace(before, state=state, since=since, over=over, clear=clear, reading=reading, read=step)


def _state(signal: Signal, before: SignalState, level: Level, over: int, clear: int) -> SignalState:
    if over >= signal.raise_after:
        return "Raised"
    if before == "Raised":
        return "Clear" if clear >= signal.clear_after else "Raised"
    if level is Level.OVER:
        return "Suspect"
    if level is Level.BETWEEN and before == "Suspect":
        return "Suspect"
    return "Clear"
