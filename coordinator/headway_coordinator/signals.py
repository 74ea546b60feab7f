"""Judges a job's signals, and gives them the forms that status, `/metrics` and MLflow show."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final, Literal

from headway_analysis.measures.metrics import Metrics
from headway_analysis.signals.catalogue import SIGNALS
from headway_analysis.signals.definition import Reading, Signal
from headway_analysis.signals.of_spec import job_of
from headway_analysis.signals.watch import Verdict, Watch
from headway_api import logs
from headway_api import status as st
from headway_api.conditions import Condition, ConditionType, Reason, condition, merge
from headway_api.signals import MAX_SHOWN_SIGNALS, STATE_VALUES, SignalState
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator.metrics.prometheus import Sample
from headway_coordinator.recurring import RecurringCause, causes_message

TEXT_LENGTH: Final = 1024
DIGITS: Final = 4

_log = logging.getLogger(__name__)


class Signals:
    """The signals of one job. `previous`: a predecessor's conditions, from which Healthy continues."""

    def __init__(
        self,
        spec: RLTrainingJobSpec,
        previous: Sequence[Condition] = (),
        catalogue: Sequence[Signal] = SIGNALS,
    ) -> None:
        self._job = job_of(spec)
        self._watch = Watch(self._job, catalogue)
        self._conditions = [known for known in previous if known.type == ConditionType.HEALTHY]
        self._states = self._by_name()

    def recall(self, step: int, metrics: Metrics) -> None:
        """Add the metrics of a step whose signals a predecessor has logged already."""
        self._watch.step(step, metrics)
        self._states = self._by_name()

    def step(self, step: int, metrics: Metrics) -> None:
        """Judge the signals by the metrics of a step that was taken."""
        self._watch.step(step, metrics)
        self._log_changes(step)

    def validation(self, step: int, metrics: Metrics) -> None:
        """Judge the signals by the metrics of a complete validation."""
        self._watch.validation(step, metrics)
        self._log_changes(step)

    def changed(self, step: int, spec: RLTrainingJobSpec) -> None:
        """Judge by the settings of `spec` from a step on, because a remedy changed the job."""
        self._watch.changed(step, job_of(spec))
        self._states = self._by_name()

    def history(self, name: str) -> dict[int, float]:
        """A metric by step, for the steps that are still remembered."""
        return self._watch.metric(name)

    @property
    def verdicts(self) -> list[Verdict]:
        """All signals, the worst first."""
        return self._watch.verdicts()

    @property
    def raised(self) -> list[Verdict]:
        """The raised signals, the most severe first."""
        return [verdict for verdict in self._watch.verdicts() if verdict.standing.state == "Raised"]

    def status(self) -> list[st.Signal]:
        """`status.signals`: the worst first. Signals without data come last, if there is room."""
        return [shown(verdict) for verdict in self._watch.verdicts()[:MAX_SHOWN_SIGNALS]]

    def condition(self, failing: Sequence[RecurringCause] = ()) -> Condition:
        """The condition Healthy; `failing` are the causes that end episodes.

        It equals the previous one if nothing changed.
        """
        merged = merge(self._conditions, [healthy(self._watch.verdicts(), failing)])
        self._conditions = merged
        return merged[-1]

    def samples(self) -> Iterator[Sample]:
        """State, number and threshold of each signal that has data."""
        for verdict in self._watch.verdicts():
            which, standing = {"signal": verdict.signal.name.value}, verdict.standing
            if standing.state == "Unknown" or standing.reading is None:
                continue
            yield Sample("signal/state", STATE_VALUES[standing.state], which)
            yield Sample("signal/value", standing.reading.value, which)
            yield Sample("signal/threshold", standing.reading.threshold, which)

    def metrics(self, clock: Literal["step", "validation"]) -> Metrics:
        """The states for MLflow, as `signal/state/<name>`, of the signals that are judged at each `clock`.

        The states at a validation are logged with the validation, because perhaps no step follows. So MLflow
        has the last state of every signal.
        """
        return {
            f"signal/state/{verdict.signal.name.value}": STATE_VALUES[verdict.standing.state]
            for verdict in self._watch.verdicts()
            if verdict.standing.state != "Unknown" and verdict.signal.judged_at(self._job) == clock
        }

    def _by_name(self) -> dict[str, SignalState]:
        return {
            verdict.signal.name.value: verdict.standing.state
            for verdict in self._watch.verdicts()
            if verdict.standing.state != "Unknown"
        }

    def _log_changes(self, step: int) -> None:
        """Log each signal that was raised, or is no longer raised."""
        now = self._by_name()
        for verdict in self._watch.verdicts():
            name, state = verdict.signal.name.value, verdict.standing.state
            before = self._states.get(name, "Unknown")
            if "Raised" in (before, state) and before != state:
                level = logging.WARNING if state == "Raised" else logging.INFO
                logs.event(
                    _log, "signal", level=level, signal=name, state=state, step=step, why=message(verdict)
                )
        self._states = now


def shown(verdict: Verdict) -> st.Signal:
    """A signal as status shows it."""
    standing = verdict.standing
    reading = standing.reading
    return st.Signal(
        name=verdict.signal.name.value,
        state=standing.state,
        since=standing.since,
        value=None if reading is None else number(reading),
        threshold=None if reading is None else st.decimal(reading.threshold, DIGITS),
        message=message(verdict)[:TEXT_LENGTH],
    )


def number(reading: Reading) -> str:
    """A signal's number, with its interval if it has one."""
    value = st.decimal(reading.value, DIGITS)
    if reading.low is None or reading.high is None:
        return value
    return f"{value} ({st.decimal(reading.low, DIGITS)} to {st.decimal(reading.high, DIGITS)})"


def message(verdict: Verdict) -> str:
    """What the signal observed. If it is raised or suspect, also the first thing to change."""
    reading = verdict.standing.reading
    if reading is None:
        return ""
    if verdict.standing.state in ("Raised", "Suspect"):
        return f"{reading.observed}. First: {verdict.signal.advice}"
    return reading.observed


def healthy(verdicts: Sequence[Verdict], failing: Sequence[RecurringCause] = ()) -> Condition:
    """The condition Healthy. Its reason is that episodes fail, or the most severe raised signal."""
    raised = [verdict for verdict in verdicts if verdict.standing.state == "Raised"]
    causes = [causes_message(failing)] if failing else []
    causes += [f"{each.signal.name.value}: {message(each)}" for each in raised]
    if causes:
        reason = Reason.EPISODES_FAILING if failing else raised[0].signal.name.value
        return condition(ConditionType.HEALTHY, False, reason, "; ".join(causes))
    known = sum(verdict.standing.state != "Unknown" for verdict in verdicts)
    if not known:
        return condition(
            ConditionType.HEALTHY, None, Reason.PENDING, "no step has enough data for a signal yet"
        )
    # The message has no numbers. Otherwise the condition would change at every step.
    return condition(ConditionType.HEALTHY, True, Reason.NO_SIGNAL_RAISED, "no signal is raised")
