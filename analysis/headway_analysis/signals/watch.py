"""A job's signals, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway_analysis.signals.catalogue import SIGNALS
from headway_analysis.signals.definition import Signal
from headway_analysis.signals.history import Change, History, Job, Metrics, Series
from headway_analysis.signals.standing import SignalTrack, after
from headway_api.signals import SignalName, SignalState

WORST_FIRST: tuple[SignalState, ...] = ("Raised", "Suspect", "Clear", "Unknown")
RANKS = {name: rank for rank, name in enumerate(SignalName)}


@dataclass(frozen=True)
class Verdict:
    """A signal and its state."""

    signal: Signal
    standing: SignalTrack

    @property
    def rank(self) -> tuple[int, int]:
        """Raised ones first, the most severe of them first."""
        return WORST_FIRST.index(self.standing.state), RANKS[self.signal.name]


class Watch:
    """Keeps the state of each signal of one job. Not thread-safe.

    The state depends on the metrics alone. If a step or validation arrives again or late, everything is
    judged again in the order of steps.
    """

    def __init__(self, job: Job, signals: Sequence[Signal] = SIGNALS) -> None:
        self._jobs = {0: job}
        self._signals = signals
        self._steps = Series()
        self._validations = Series()
        self._standings = {signal.name: SignalTrack() for signal in signals}

    def step(self, step: int, metrics: Metrics) -> None:
        """A step was taken: its own metrics and those of its batch."""
        self._follow("step", step, self._steps.put(step, metrics))

    def validation(self, step: int, metrics: Metrics) -> None:
        """The weights of a step were validated."""
        self._follow("validation", step, self._validations.put(step, metrics))

    def changed(self, step: int, job: Job) -> None:
        """From this step on the job has other settings, since a remedy was applied."""
        if self._jobs.get(step) != job:
            self._jobs[step] = job
            self._judge_all()

    def metric(self, name: str) -> dict[int, float]:
        """A metric by step, for the steps that are kept and have it."""
        known = zip(self._steps.steps, self._steps.metrics, strict=True)
        return {step: metrics[name] for step, metrics in known if name in metrics}

    def verdicts(self) -> list[Verdict]:
        """All signals, the worst first."""
        found = (Verdict(signal, self._standings[signal.name]) for signal in self._signals)
        return sorted(found, key=lambda verdict: verdict.rank)

    def _follow(self, clock: str, step: int, change: Change) -> None:
        if change is Change.NEWEST:
            self._judge(clock, step)
        elif change is Change.EARLIER:
            self._judge_all()

    def _judge(self, clock: str, step: int) -> None:
        # A validation may end after later steps: a step's reading must not depend on when that happens.
        validations = self._validations if clock == "validation" else Series()
        job = self._jobs[max(since for since in self._jobs if since <= step)]
        history = History(job, self._steps, validations, step)
        for signal in self._signals:
            if signal.judged_at(job) == clock:
                before = self._standings[signal.name]
                self._standings[signal.name] = after(signal, before, signal.judge(history), step)

    def _judge_all(self) -> None:
        self._standings = {signal.name: SignalTrack() for signal in self._signals}
        moments = [(step, "step") for step in self._steps.steps]
        moments += [(step, "validation") for step in self._validations.steps]
        for step, clock in sorted(moments):
            self._judge(clock, step)
