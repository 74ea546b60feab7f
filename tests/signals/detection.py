"""Evaluates the signals on the recorded runs: when each symptom is raised, and how often falsely."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Final

from tests.signals import labels
from tests.signals.read import Series, Split

from headway_analysis.signals.history import Job
from headway_analysis.signals.watch import Verdict, Watch
from headway_api.signals import SignalName

WITHIN: Final = 10
"""Steps after a symptom's begin within which its signal must be raised."""
EARLIEST: Final = 10
"""An alarm that is active when a symptom begins counts if it was raised at most this many steps earlier."""


@dataclass(frozen=True)
class Alarm:
    """A change of a signal to Raised."""

    signal: SignalName
    step: int
    """The step at which the change was known. For a change at a validation, it is the validated step."""
    observed: str


@dataclass(frozen=True)
class Detection:
    """Whether and when one symptom of a run was detected."""

    run: str
    split: Split
    signal: SignalName
    begin: int
    raised: int | None
    """The first step, from the begin on, at which the signal was Raised. None if it never was."""
    early: bool
    """Whether the signal was already Raised before the begin, by at most `EARLIEST` steps."""

    @property
    def delay(self) -> int | None:
        """Steps from the symptom's begin to the alarm."""
        return None if self.raised is None else self.raised - self.begin

    @property
    def in_time(self) -> bool:
        """Whether the signal was raised within `WITHIN` steps."""
        return self.delay is not None and self.delay <= WITHIN


def job_of(series: Series) -> Job:
    """The facts of a recorded run that signals may use."""
    low, high = series.known.reward_range
    known = series.known
    return Job(
        low,
        high,
        known.max_steps_off_policy,
        known.max_turns,
        updates_per_batch=known.updates_per_batch,
        sequence_ratio=known.loss == "gspo",
        validates=known.validation_every > 0,
    )


def verdicts(series: Series) -> Iterator[tuple[int, Sequence[Verdict]]]:
    """Each step of a run, with the signals' verdicts after it and its validation."""
    watch = Watch(job_of(series))
    for step, metrics, validation in series.steps:
        if step:
            watch.step(step, metrics)
        if validation:
            watch.validation(step, validation)
        yield step, watch.verdicts()


def raised_at(series: Series) -> dict[SignalName, list[int]]:
    """Signal -> the steps at which it was Raised."""
    found = dict[SignalName, list[int]]()
    for step, now in verdicts(series):
        for verdict in now:
            if verdict.standing.state == "Raised":
                found.setdefault(verdict.signal.name, []).append(step)
    return found


def alarms(series: Series) -> list[Alarm]:
    """Every change to Raised."""
    found, before = list[Alarm](), set[SignalName]()
    for step, now in verdicts(series):
        raised = {v.signal.name: v for v in now if v.standing.state == "Raised"}
        for name in sorted(raised.keys() - before):
            reading = raised[name].standing.reading
            found.append(Alarm(name, step, "" if reading is None else reading.observed))
        before = set(raised)
    return found


def suspicions(series: Series) -> list[tuple[SignalName, int]]:
    """Every change to Suspect: the signal and the step."""
    found, before = list[tuple[SignalName, int]](), set[SignalName]()
    for step, now in verdicts(series):
        suspect = {v.signal.name for v in now if v.standing.state == "Suspect"}
        found += [(name, step) for name in sorted(suspect - before)]
        before = suspect
    return found


def detections(series: Series) -> list[Detection]:
    """The detection of each symptom that a run provokes."""
    raised = raised_at(series)
    found = []
    for expected in series.expected:
        first, early = first_alarm(expected.begin, set(raised.get(expected.signal, ())))
        found.append(Detection(series.name, series.split, expected.signal, expected.begin, first, early))
    return found


def first_alarm(begin: int, raised: Set[int]) -> tuple[int | None, bool]:
    """The first step, from a symptom's begin on, at which its alarm counts, and whether it was raised before.

    Args:
        begin: the symptom's first step.
        raised: every step at which the signal was Raised.
    """
    since = begin
    while since - 1 in raised:
        since -= 1
    if begin in raised and begin - since <= EARLIEST:
        return begin, since < begin
    starts = (step for step in raised if step > begin and step - 1 not in raised)
    return min(starts, default=None), False


def false_alarms(series: Series) -> list[Alarm]:
    """The alarms of a clean run, except for symptoms that it shows."""
    return [alarm for alarm in alarms(series) if not labels.shows(series, alarm.signal, alarm.step)]


def steps_of(runs: Iterable[Series]) -> int:
    """How many training steps these runs have in total."""
    return sum(bool(step.step) for series in runs for step in series.steps)
