"""Derives facts from a job's status that deserve an Event, for people who do not watch the status. Pure.

A fact exists as long as the status shows it. Its key contains what happened and when: a condition's
transition, a step, a count. So the same status always has the same facts, and a recorded fact is recognized.
If the beginning of a problem was recorded, its end is recorded too. The key has the time of the beginning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from headway_api import names
from headway_api.conditions import Condition, ConditionType, Reason, find, is_finished
from headway_api.status import Remediation, RLEvalJobStatus, RLTrainingJobStatus, Role
from headway_operator.plan import failures, signal_facts
from headway_operator.plan.context import JobStatus
from headway_operator.plan.fact import Fact, tenth

REPORTED_ELSEWHERE: Final = (Reason.SUSPENDED, Reason.PAUSED, Reason.BUDGET_EXHAUSTED, Reason.INVALID_SPEC)
"""Reasons of Stalled that another fact reports."""
CANNOT_START: Final = (
    Reason.IMAGE_PULL_FAILED,
    Reason.CREATE_FAILED,
    Reason.AGENT_UNREACHABLE,
    Reason.UNSCHEDULABLE,
    Reason.OUT_OF_MEMORY,
    Reason.DISRUPTED,
    Reason.PROCESS_FAILED,
)
"""Reasons of Progressing that get an event although the job may still start by itself."""
ESTIMATED_FROM: Final = {
    "Data": "by its data and limits",
    "Preflight": "by the episodes of its preflight",
    "Running": "by the episodes it has played",
}
"""Basis of an estimate -> the words for it in a message."""
AWAITED: Final = (Reason.WAITING_FOR_WEIGHTS, Reason.CANDIDATE_MISSING, Reason.CHECKPOINT_MISSING)
"""Reasons of Ready that get an event: another job is missing, or has not progressed far enough."""


def facts(status: JobStatus) -> list[Fact]:
    """The facts in a status."""
    found = [fact for known in status.conditions if (fact := _of_condition(known, status))]
    if not is_finished(status.conditions):
        found += [*_refused(status), *_stalled(status), *_cannot_start(status), *_failing(status)]
    found += [fact for role in status.roles if role.restarts for fact in [_restarted(role)]]
    found += _by_rule(status)
    found += [*_priced(status), *_estimated(status)]
    if isinstance(status, RLTrainingJobStatus):
        found += [*_warned(status), *_checkpointed(status), *_validated(status)]
        found += [*signal_facts.raised_or_suspect(status), *_changed(status), *_refused_order(status)]
    begun = status.start_time
    return [fact if fact.at or fact.not_before else replace(fact, not_before=begun) for fact in found]


def ended_problems(recorded: Collection[str], status: JobStatus) -> Iterator[Fact]:
    """The ends of problems whose beginning was recorded; none once the job itself has ended.

    Anyone who may write events can write one in the operator's name, so a key without a time is ignored.
    """
    if is_finished(status.conditions):
        return
    for key in sorted(recorded):
        what, _, when = key.rpartition(".")
        if what in ("stalled", "weightsoutofsync", "episodesfailing") and (since := _clock(when)):
            yield from _mended(what, when, since, status)
        if isinstance(status, RLTrainingJobStatus):
            yield from signal_facts.cleared(key, recorded, status)


def _mended(what: str, when: str, since: str, status: JobStatus) -> Iterator[Fact]:
    """The fact that a bad condition is good again."""
    if what == "stalled" and (known := _in_state(status, ConditionType.STALLED, "False")):
        text = f"the job is no longer stalled; it had been stalled since {since}"
        yield Fact(f"nolongerstalled.{when}", "NoLongerStalled", text, at=known.last_transition_time)
    if what == "episodesfailing" and (known := find(status.conditions, ConditionType.HEALTHY)):
        if known.status == "False" and known.reason == Reason.EPISODES_FAILING:
            return
        text = f"no fault of environment or agent recurs now; one had recurred since {since}"
        yield Fact(f"episodesrecovered.{when}", "EpisodesRecovered", text)
    if what == "weightsoutofsync" and (known := _in_state(status, ConditionType.WEIGHTS_IN_SYNC, "True")):
        text = f"{known.message}; they had been out of sync since {since}"
        yield Fact(f"weightsinsync.{when}", "WeightsInSync", text, at=known.last_transition_time)


def has_begun(status: JobStatus) -> bool:
    """Whether the job has done some of its work."""
    if isinstance(status, RLTrainingJobStatus):
        return status.progress is not None and status.progress.step > 0
    return status.progress is not None and status.progress.groups > 0


def _of_condition(known: Condition, status: JobStatus) -> Fact | None:
    """The fact of a condition's last transition."""
    words = known.message
    match known.type, known.status, known.reason:
        case ConditionType.ACCEPTED, "True", _:
            return _since(known, "Accepted", "the spec can be run")
        case ConditionType.PREFLIGHT_PASSED, "True", _:
            return _since(known, "PreflightPassed", words)
        case ConditionType.PREFLIGHT_PASSED, "False", Reason.WARNED:
            return _since(known, "PreflightWarned", f"the job continues: {words}", warning=True)
        case ConditionType.PREFLIGHT_PASSED, "False", _:
            return _since(known, "PreflightFailed", words, warning=True)
        case ConditionType.PROGRESSING, "True", _:
            return Fact("started.once", "Started", _beginning(status), at=known.last_transition_time)
        case ConditionType.SUSPENDED, "True", _:
            return _paused(known, status) or _suspended(known, status)
        case ConditionType.SUSPENDED, "False", Reason.RESUMED:
            return _since(known, "Resumed", f"{words or 'spec.suspend is false again'}; {_progress(status)}")
        case ConditionType.BUDGET_LOW, "True", _:
            return _since(known, "BudgetLow", words, warning=True)
        case ConditionType.BUDGET_EXHAUSTED, "True", _:
            return _since(known, "BudgetExhausted", words, warning=True)
        case ConditionType.WEIGHTS_IN_SYNC, "False", reason:
            return _since(known, "WeightsOutOfSync", f"{reason}: {words}", warning=True)
        case ConditionType.GATE_PASSED, "True", _:
            return _since(known, "GatePassed", words)
        case ConditionType.GATE_PASSED, "False", _:
            return _since(known, "GateRefused", words, warning=True)
        case ConditionType.COMPLETE, "True", _:
            return _since(known, "Complete", f"{words}; {_progress(status)}")
        case ConditionType.FAILED, "True", reason:
            return _since(known, "Failed", f"{reason}: {words}; {_progress(status)}", warning=True)
        case _:
            return None


def _since(known: Condition, reason: str, message: str, *, warning: bool = False) -> Fact:
    when = known.last_transition_time
    return Fact(f"{reason.lower()}.{int(when.timestamp())}", reason, message, warning, when)


def _suspended(known: Condition, status: JobStatus) -> Fact:
    return _since(known, "Suspended", f"every pod is gone; {_progress(status)}")


def _paused(known: Condition, status: JobStatus) -> Fact | None:
    """The fact that the job is paused. The key has the pause's time: changes of `suspend` add no fact.

    The long message comes last, so that the length limit of events does not cut the resume command.
    """
    if known.reason != Reason.PAUSED or not isinstance(status, RLTrainingJobStatus) or not status.pause:
        return None
    found = status.pause
    step = _of(found.step, status.progress.max_steps if status.progress else None)
    text = f"{found.signal} at {step}: every pod is gone. To go on: {found.resume}; {found.message}"
    key = f"paused.{int(found.time.timestamp())}"
    return Fact(key, "Paused", text, warning=True, at=known.last_transition_time)


def _refused(status: JobStatus) -> Iterator[Fact]:
    """The refusal of the spec, keyed by generation: the next spec may be refused without a transition."""
    known = _in_state(status, ConditionType.ACCEPTED, "False")
    if known is not None and known.observed_generation is not None:
        key, since = f"invalidspec.{known.observed_generation}", known.last_transition_time
        yield Fact(key, "InvalidSpec", known.message, warning=True, not_before=since)


def _stalled(status: JobStatus) -> Iterator[Fact]:
    known = _in_state(status, ConditionType.STALLED, "True")
    if known is not None and known.reason not in REPORTED_ELSEWHERE:
        yield _since(known, "Stalled", f"{known.reason}: {known.message}", warning=True)


def _cannot_start(status: JobStatus) -> Iterator[Fact]:
    """The fact that pods cannot start, or that another job is awaited; nothing if Stalled reports it."""
    if _in_state(status, ConditionType.STALLED, "True"):
        return
    for kind, reasons in ((ConditionType.PROGRESSING, CANNOT_START), (ConditionType.READY, AWAITED)):
        known = _in_state(status, kind, "False")
        if known is not None and known.reason in reasons:
            since = known.last_transition_time
            key = f"{known.reason.lower()}.{int(since.timestamp())}"
            yield Fact(key, known.reason, known.message, warning=True, not_before=since)


def _failing(status: JobStatus) -> Iterator[Fact]:
    """The fault of the job's environment or agent that repeatedly ends episodes."""
    known = _in_state(status, ConditionType.HEALTHY, "False")
    if known is not None and known.reason == Reason.EPISODES_FAILING:
        since = known.last_transition_time
        key = f"episodesfailing.{int(since.timestamp())}"
        yield Fact(key, "EpisodesFailing", known.message, warning=True, not_before=since)


def _restarted(role: Role) -> Fact:
    words = f": {role.message}" if role.message else ""
    text = f"{role.name} was started again after a failure, {role.restarts} times so far{words}"
    return Fact(f"restarted.{role.name}.{role.restarts}", "Restarted", text, warning=True)


def _by_rule(status: JobStatus) -> Iterator[Fact]:
    """Each failure that a rule matched. The key, a pod's name and the number of its ending, is unique."""
    for found in status.failures.matched if status.failures else []:
        key, text = f"failurerulematched.{found.pod}.{found.ending}", failures.sentence(found)
        yield Fact(key, "FailureRuleMatched", text, warning=found.action != "Ignore", at=found.time)


def _priced(status: JobStatus) -> Iterator[Fact]:
    """Corrections of prices, and a price book that was not accepted."""
    if (used := status.usage) is None:
        return
    if used.price_corrections:
        book = f"price book {used.price_book}, SHA-256 {used.price_book_hash}"
        text = f"{book}: prices of past usage have changed, {used.price_corrections} times so far"
        yield Fact(f"pricescorrected.{used.price_corrections}", "PricesCorrected", text)
    if used.price_book_problem:
        digest = hashlib.sha256(used.price_book_problem.encode()).hexdigest()[:8]
        yield Fact(f"pricebookinvalid.{digest}", "PriceBookInvalid", used.price_book_problem, warning=True)


def _warned(status: RLTrainingJobStatus) -> Iterator[Fact]:
    """The warnings about the spec. The key is a hash of their text, so it changes only with them."""
    if text := "; ".join(status.warnings):
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        yield Fact(f"specunwise.{digest}", "SpecUnwise", text, warning=True)


def _estimated(status: JobStatus) -> Iterator[Fact]:
    """The estimate, once for each basis, since its numbers change as the job progresses."""
    found = status.estimate
    if found is None or found.likely is None:
        return
    text = f"{ESTIMATED_FROM[found.basis]}, the whole job costs {found.likely} USD"
    text += f", at least {found.low} and at most {found.high}"
    text += f", without {', '.join(found.unpriced)}" if found.unpriced else ""
    yield Fact(f"estimated.{found.basis.lower()}", "Estimated", text, at=found.time)


def _checkpointed(status: RLTrainingJobStatus) -> Iterator[Fact]:
    """The first checkpoint, then the first of each tenth of the job's steps: eleven at most."""
    latest = status.checkpoints.latest if status.checkpoints else None
    if latest is None or latest.step == 0:
        return
    maximum = status.progress.max_steps if status.progress else None
    text = f"a restart continues from {_of(latest.step, maximum)}: {latest.uri}"
    yield Fact(f"checkpointed.{tenth(latest.step, maximum)}", "Checkpointed", text)


def _validated(status: RLTrainingJobStatus) -> Iterator[Fact]:
    found = status.validation
    if found is None or found.best is None or found.best.step == 0:
        return
    best = found.best
    scores = [f"external score {best.external_score}"] if best.external_score else []
    scores += [f"reward {best.reward}"] if best.reward else []
    text = f"step {best.step} has the best validation so far: {', '.join(scores)}"
    if found.baseline_external_score:
        text += f" (external score {found.baseline_external_score} before training)"
    yield Fact(f"validatedbest.{best.step}", "ValidatedBest", text)


def _changed(status: RLTrainingJobStatus) -> Iterator[Fact]:
    """Each remedy of the running job and its outcome, keyed by the remedy's number."""
    for change in status.remediations:
        cause = change.signal or f"ordered: {change.order}"
        text = f"step {change.step}: {change.remedy} ({cause})"
        if change.state != "Refused":
            words = f"{text}: {change.action}; {change.message}"
            yield Fact(f"remedytaken.{change.number}", "RemedyTaken", words)
        if change.state != "Watching":
            words = f"{text}: {_outcome(change)}{change.message}"
            key, reason = f"remedy{change.state.lower()}.{change.number}", f"Remedy{change.state}"
            yield Fact(key, reason, words, warning=change.state in ("Undone", "Refused"))


def _outcome(change: Remediation) -> str:
    before, after = change.before, change.after
    if before is None or after is None or before.reward is None or after.reward is None:
        return ""
    return f"reward {before.reward} before, {after.reward} after; "


def _refused_order(status: RLTrainingJobStatus) -> Iterator[Fact]:
    """The refusal of an ordered remedy. The key is a hash of the order, so each order is recorded once."""
    order = status.remedy_order
    if order is not None and order.state == "Refused":
        digest = hashlib.sha256(order.order.encode()).hexdigest()[:8]
        text = f"{names.ANNOTATION_REMEDY}={order.order}: {order.message or 'refused'}"
        yield Fact(f"orderrefused.{digest}", "OrderRefused", text, warning=True)


def _beginning(status: JobStatus) -> str:
    if isinstance(status, RLEvalJobStatus):
        rows = status.progress.of_groups if status.progress else None
        many = len(status.candidates)
        return f"the evaluation of {many} candidates began" + (f": {rows} rows" if rows else "")
    maximum = status.progress.max_steps if status.progress else None
    return "training began" + (f": {maximum} steps" if maximum else "")


def _progress(status: JobStatus) -> str:
    """The job's progress and its cost."""
    found = []
    if isinstance(status, RLTrainingJobStatus):
        if progress := status.progress:
            found.append(_of(progress.step, progress.max_steps))
        if (validation := status.validation) and validation.external_score:
            found.append(f"external score {validation.external_score}")
    elif of := status.progress:
        found.append(f"{of.groups} of {of.of_groups} rows" if of.of_groups else f"{of.groups} rows")
    if status.usage and status.usage.cost:
        found.append(f"{status.usage.cost} {status.usage.currency}")
    return ", ".join(found) or "nothing has been done yet"


def _of(step: int, maximum: int | None) -> str:
    return f"step {step} of {maximum}" if maximum else f"step {step}"


def _in_state(status: JobStatus, kind: ConditionType, state: str) -> Condition | None:
    known = find(status.conditions, kind)
    return known if known is not None and known.status == state else None


def _clock(stamp: str) -> str | None:
    """The time at the end of a key, for people; None if the key has none."""
    try:
        return datetime.fromtimestamp(int(stamp), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return None
