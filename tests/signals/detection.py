"""What the signals make of the recorded runs: when each symptom is raised, and how often nothing is wrong."""

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
"""Steps within which a symptom is to be raised."""
EARLIEST: Final = 10
"""An alarm that is up at a symptom's begin counts if it was raised at most this many steps before."""


@dataclass(frozen=True)
class Alarm:
    """A signal changed to Raised."""

    signal: SignalName
    step: int
    """The step at which it was known: of a validation, the step that was validated."""
    observed: str


@dataclass(frozen=True)
class Detection:
    """What became of one symptom of one run."""

    run: str
    split: Split
    signal: SignalName
    begin: int
    raised: int | None
    """The first step at which it was Raised, from its begin on; None where it never was."""
    early: bool
    """Whether it was Raised before its begin already, by at most `EARLIEST` steps."""

    @property
    def delay(self) -> int | None:
        """Steps from the symptom's first one to the alarm."""
        return None if self.raised is None else self.raised - self.begin

    @property
    def in_time(self) -> bool:
        """Whether it was raised soon enough."""
        return self.delay is not None and self.delay <= WITHIN


def job_of(series: Series) -> Job:
    """What signals may know of a recorded run."""
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
    """Every step of a run, and what the signals say after it and its validation."""
    watch = Watch(job_of(series))
    for step, metrics, validation in series.steps:
        if step:
            watch.step(step, metrics)
        if validation:
            watch.validation(step, validation)
        yield step, watch.verdicts()


def raised_at(series: Series) -> dict[SignalName, list[int]]:
    """By signal: the steps at which it was Raised."""
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
    """Every change to Suspect, with its step."""
    found, before = list[tuple[SignalName, int]](), set[SignalName]()
    for step, now in verdicts(series):
        suspect = {v.signal.name for v in now if v.standing.state == "Suspect"}
        found += [(name, step) for name in sorted(suspect - before)]
        before = suspect
    return found


def detections(series: Series) -> list[Detection]:
    """What became of each symptom that a run provokes."""
    raised = raised_at(series)
    found = []
    for expected in series.expected:
        first, early = first_alarm(expected.begin, set(raised.get(expected.signal, ())))
        found.append(Detection(series.name, series.split, expected.signal, expected.begin, first, early))
    return found


def first_alarm(begin: int, raised: Set[int]) -> tuple[int | None, bool]:
    """The step from a symptom's begin on at which its alarm counts, and whether it was raised before.

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
    """Training steps in all."""
    return sum(bool(step.step) for series in runs for step in series.steps)
