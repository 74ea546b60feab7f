"""Derives facts about a job's signals: a signal is suspect, raised, or clear again. Pure.

The key of a raised signal has the step since which it is raised. A signal may become suspect many times,
since one reading above its threshold is enough. Only the first time in each tenth of
the job's steps is recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from headway_api.conditions import ConditionType, find
from headway_api.signals import MAX_SHOWN_SIGNALS, SignalName
from headway_api.status import RLTrainingJobStatus, Signal
from headway_operator.plan.fact import Fact, tenth

SIGNALS: Final = {name.lower(): str(name) for name in SignalName}
RAISED: Final = "signalraised"
SUSPECTED: Final = "signalsuspected"


def raised_or_suspect(status: RLTrainingJobStatus) -> Iterator[Fact]:
    """Facts of the signals that are suspect or raised. No signal was raised before Healthy became False."""
    healthy = find(status.conditions, ConditionType.HEALTHY)
    since = healthy.last_transition_time if healthy and healthy.status == "False" else None
    for signal in status.signals:
        if signal.state == "Raised":
            yield Fact(
                _raise(signal),
                "SignalRaised",
                _words(signal),
                warning=True,
                not_before=since,
                order=f"{RAISED}.",
            )
        elif signal.state == "Suspect":
            key = f"{SUSPECTED}.{signal.name.lower()}.{tenth(signal.since, _last_step(status))}"
            yield Fact(key, "SignalSuspected", _words(signal))


def cleared(key: str, recorded: Collection[str], status: RLTrainingJobStatus) -> Iterator[Fact]:
    """The fact that a key's signal is no longer suspect or raised, if the status shows it.

    Args:
        key: key of a recorded event.
        recorded: keys of all recorded events.
    """
    what, _, rest = key.partition(".")
    name, _, when = rest.rpartition(".")
    if what == RAISED:
        yield from _no_longer_raised(name, when, status)
    if what == SUSPECTED and when.isdecimal():
        yield from _no_longer_suspect(name, int(when), recorded, status)


def _raise(signal: Signal) -> str:
    return f"{RAISED}.{signal.name.lower()}.{signal.since}"


def _words(signal: Signal) -> str:
    text = f"{signal.name} since step {signal.since}"
    if signal.value:
        text += f": {signal.value}" + (f" against {signal.threshold}" if signal.threshold else "")
    return f"{text}. {signal.message}" if signal.message else text


def _no_longer_raised(name: str, since: str, status: RLTrainingJobStatus) -> Iterator[Fact]:
    raised = [signal for signal in status.signals if signal.state == "Raised"]
    now = _of_name(name, status)
    if not status.signals or any(_raise(signal) == f"{RAISED}.{name}.{since}" for signal in raised):
        return
    if now is None and len(raised) >= MAX_SHOWN_SIGNALS:
        return
    if now is None or now.state != "Unknown":
        state = f"{now.state.lower()} since step {now.since}" if now else "clear"
        text = f"{SIGNALS.get(name, name)}, raised since step {since}, is {state}"
        yield Fact(f"signalcleared.{name}.{since}", "SignalCleared", text)


def _no_longer_suspect(
    name: str, part: int, recorded: Collection[str], status: RLTrainingJobStatus
) -> Iterator[Fact]:
    """The fact that a suspect signal is clear. If it was raised meanwhile,
    `_no_longer_raised` reports it."""
    now = _of_name(name, status)
    if now is not None and now.state != "Clear":
        return
    # The status lists the worst signals only. A signal that is missing is not worse than the last one listed.
    if now is None and not (status.signals and status.signals[-1].state == "Clear"):
        return
    if any(tenth(step, _last_step(status)) >= part for step in _raised_before(name, recorded)):
        return
    since = f" since step {now.since}" if now else ""
    text = f"{SIGNALS.get(name, name)} was suspect, and is clear{since}"
    yield Fact(f"suspicioncleared.{name}.{part}", "SignalCleared", text)


def _raised_before(name: str, recorded: Collection[str]) -> Iterator[int]:
    """The steps since which a signal was raised, from the recorded keys."""
    for key in recorded:
        what, _, since = key.rpartition(".")
        if what == f"{RAISED}.{name}" and since.isdecimal():
            yield int(since)


def _of_name(name: str, status: RLTrainingJobStatus) -> Signal | None:
    return next((signal for signal in status.signals if signal.name.lower() == name), None)


def _last_step(status: RLTrainingJobStatus) -> int | None:
    return status.progress.max_steps if status.progress else None
