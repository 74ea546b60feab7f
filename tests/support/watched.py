"""Made-up signals, for tests of code that uses only their states."""

from __future__ import annotations

from collections.abc import Callable

from headway_analysis.signals.definition import Level, Reading, Signal
from headway_analysis.signals.history import History
from headway_api.signals import SignalName

WORDS = ("meaning", "number", "threshold", "reason", "source", "advice", "confirmed_by")


def a_signal(judge: Callable[[History], Reading | None] = lambda history: None, **changes: object) -> Signal:
    """Return a signal whose texts do not matter."""
    given: dict[str, object] = {
        "name": SignalName.REWARD_FLAT,
        **dict.fromkeys(WORDS, "some words"),
        **changes,
    }
    return Signal(judge=judge, look_at=(), **given)  # type: ignore[arg-type]


def above(metric: str, threshold: float = 1.0) -> Callable[[History], Reading | None]:
    """Return a rule: its level is `OVER` if the latest value of `metric` is above `threshold`."""

    def judge(history: History) -> Reading | None:
        value = history.latest(metric)
        if value is None:
            return None
        level = Level.OVER if value > threshold else Level.CLEAR
        return Reading(level, value, threshold, f"{metric} is {value:g}")

    return judge
