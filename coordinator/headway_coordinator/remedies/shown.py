"""The remedies of a job, as status, report, `/metrics` and MLflow show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, get_args

from headway_analysis.remedies.catalogue import changed_settings
from headway_analysis.remedies.course import Course, Entry
from headway_api import names
from headway_api import status as st
from headway_api.decisions import Measured
from headway_api.remedies import applied
from headway_api.spec.training import RLTrainingJobSpec
from headway_coordinator.metrics.mlflow import NOW
from headway_coordinator.metrics.parameters import parameters, written
from headway_coordinator.metrics.prometheus import Sample
from headway_coordinator.remedies.driver import Remedies

MAX_SHOWN: Final = 8
"""The most remedies in a status, as its schema allows."""
TEXT_LENGTH: Final = 1024
WORD_LENGTH: Final = 128
TAG: Final = f"{names.GROUP}/remedy"
"""The prefix of the tags that describe remedies."""


def remediations(course: Course, spec: RLTrainingJobSpec) -> list[st.Remediation]:
    """`status.remediations`: the last remedies, oldest first."""
    return [_shown(entry, spec) for entry in course.entries[-MAX_SHOWN:]]


def _shown(entry: Entry, spec: RLTrainingJobSpec) -> st.Remediation:
    decision = entry.decision
    return st.Remediation(
        number=entry.number,
        step=entry.step,
        remedy=entry.remedy,
        signal=decision.signal,
        order=None if decision.order is None else decision.order[:WORD_LENGTH],
        action=action(entry, spec)[:TEXT_LENGTH],
        state=entry.state,
        restored_step=entry.restored,
        watched_until=entry.ended,
        before=measurements(decision.before),
        after=None if entry.after is None else measurements(entry.after),
        message=message(entry)[:TEXT_LENGTH],
    )


def action(entry: Entry, spec: RLTrainingJobSpec) -> str:
    """What a remedy did, or was meant to do."""
    settings = changed_settings(applied(spec, entry.was), applied(spec, entry.decision.in_force))
    steps = [entry.restored] if entry.restored is not None else entry.decision.directive.restore
    back = f"goes back to the weights of step {' or '.join(map(str, steps))}" if steps else ""
    return "; ".join(filter(None, (back, settings)))


def message(entry: Entry) -> str:
    """Why a remedy was decided, and why it ended as it did."""
    why = entry.decision.why
    return f"{why}. {entry.state}: {entry.why}" if entry.why else why


def measurements(found: Measured) -> st.RemedyMeasurements:
    """What was measured of the job, as status shows it."""
    reward = None if found.reward is None else st.decimal(found.reward)
    if reward is not None and found.low is not None and found.high is not None:
        reward = f"{reward} ({st.decimal(found.low)} to {st.decimal(found.high)})"
    return st.RemedyMeasurements(
        reward=reward,
        steps=found.steps,
        validated_step=found.validated,
        external_score=None if found.score is None else st.decimal(found.score),
    )


def order(remedies: Remedies) -> st.RemedyOrder | None:
    """`status.remedyOrder`: the result of a person's order."""
    asked = remedies.order
    if asked is None:
        return None
    text = asked[:WORD_LENGTH]
    if (refused := remedies.refused(asked)) is not None:
        why = refused.why[:TEXT_LENGTH]
        return st.RemedyOrder(order=text, state="Refused", step=refused.step, message=why)
    decision, report = remedies.answer(asked)
    if decision is None and remedies.done:
        return st.RemedyOrder(order=text, state="Refused", message="no step is left")
    if decision is None or report is None:
        return st.RemedyOrder(order=text, state="Waiting")
    if report.refused is not None:
        why = f"{report.refused.reason}: {report.refused.message}"[:TEXT_LENGTH]
        return st.RemedyOrder(order=text, state="Refused", step=decision.step, message=why)
    return st.RemedyOrder(order=text, state="Taken", step=decision.step)


def samples(course: Course) -> Iterator[Sample]:
    """The number of remedies in each state."""
    count = Counter(entry.state for entry in course.entries)
    for state in get_args(st.RemedyState):
        yield Sample("remedy/changes", count[state], {"state": state})


def tags(course: Course, spec: RLTrainingJobSpec, now: RLTrainingJobSpec) -> dict[str, str]:
    """The run's tags: each remedy, and the current values of all parameters that a remedy ever changed."""
    found = {f"{TAG}/{entry.number:06d}": written(_line(entry, spec)) for entry in course.entries}
    given, current = parameters(spec), parameters(now)
    for entry in course.entries:
        became = parameters(applied(spec, entry.decision.in_force))
        found |= {f"{NOW}/{name}": current[name] for name in current if became.get(name) != given.get(name)}
    return found


def _line(entry: Entry, spec: RLTrainingJobSpec) -> str:
    why = entry.decision.signal or f"ordered: {entry.decision.order}"
    return f"step {entry.step}: {entry.remedy} ({why}): {action(entry, spec)}: {entry.state}"


def report(course: Course, spec: RLTrainingJobSpec) -> list[dict[str, Any]]:
    """All remedies, for the report of a finished job."""
    return [_shown(entry, spec).as_object() for entry in course.entries]
