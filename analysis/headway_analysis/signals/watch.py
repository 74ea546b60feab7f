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
        """A sort key: raised signals come first, and within a state the most severe signal."""
        return WORST_FIRST.index(self.standing.state), RANKS[self.signal.name]


class Watch:
    """Keeps the state of each signal of one job. Not thread-safe.

    The states depend only on the metrics and the settings. If a step or validation arrives late, or again
    with other metrics, all steps are judged again in their order.
    """

    def __init__(self, job: Job, signals: Sequence[Signal] = SIGNALS) -> None:
        self._jobs = {0: job}
        self._signals = signals
        self._steps = Series()
        self._validations = Series()
        self._standings = {signal.name: SignalTrack() for signal in signals}

    def step(self, step: int, metrics: Metrics) -> None:
        """Judge a step that was taken. `metrics`: those of the step and of its batch."""
        self._follow("step", step, self._steps.put(step, metrics))

    def validation(self, step: int, metrics: Metrics) -> None:
        """Judge the validation of a step's weights."""
        self._follow("validation", step, self._validations.put(step, metrics))

    def changed(self, step: int, job: Job) -> None:
        """Use other settings of the job from this step on, at which a remedy was applied."""
        if self._jobs.get(step) != job:
            self._jobs[step] = job
            self._judge_all()

    def metric(self, name: str) -> dict[int, float]:
        """Step -> value of a metric, for the steps that are kept and have the metric."""
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
        # A validation may end after later steps were taken. A step's reading must not depend on when it ends.
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
