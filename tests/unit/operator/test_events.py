"""Each change of a job has exactly one Event, whichever replica looks and however often."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
import urllib3
from event_stage import Stage, says, signals
from observed_cluster import START, UID, eval_job, job, stamp

from headway_api.document import Json
from headway_api.status import RemedyState
from headway_operator.kube import ApiError
from headway_operator.plan import events
from headway_operator.plan.fact import Fact
from headway_operator.plan.facts import AWAITED, CANNOT_START
from headway_operator.plan.job_kinds import job_kind_of
from headway_operator.plan.reading import parse_status


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A job that the operator saw from its beginning."""
    made = Stage(monkeypatch)
    made.look()
    return made


def accepted(stage: Stage) -> None:
    stage.set(startTime=stamp(stage.now)).condition("Accepted", "True", "Accepted")
    stage.condition("Stalled", "False", "Reconciled")


def refused(stage: Stage) -> None:
    stage.condition("Accepted", "False", "InvalidSpec", "spec.caps: too many servers")
    stage.condition("Stalled", "True", "InvalidSpec", "spec.caps: too many servers")


def starts(stage: Stage) -> None:
    stage.set(progress={"step": 0, "maxSteps": 40}).condition("Progressing", "True", "Stepping")


def steps(number: int) -> Callable[[Stage], object]:
    def change(stage: Stage) -> None:
        latest = {"step": number, "uri": f"s3://b/{number}"}
        stage.set(progress={"step": number, "maxSteps": 40}, checkpoints={"latest": latest})

    return change


def validates(step: int, score: str) -> Callable[[Stage], object]:
    best = {"step": step, "externalScore": score, "reward": "0.5"}
    found = {"step": step, "externalScore": score, "baselineExternalScore": "0.2", "best": best}
    return lambda stage: stage.set(validation=found)


def restarts(times: int) -> Callable[[Stage], object]:
    role = {"name": "learner", "restarts": times, "message": "pod refunds-learner-0: exit code 1"}
    return lambda stage: stage.set(roles=[role])


def estimates(basis: str, likely: str | None, **more: Any) -> Callable[[Stage], object]:
    """The coordinator has an estimate of the whole job, or none if `likely` is None."""

    def says_so(stage: Stage) -> None:
        known = {} if likely is None else {"low": "0.10", "likely": likely, "high": "9.00"}
        began = stamp(stage.now - timedelta(seconds=20))
        stage.set(estimate={"basis": basis, "time": began, **known, **more})

    return says_so


PAUSE: Json = {
    "signal": "NothingToTrain",
    "step": 6,
    "message": "0 of 4 groups had an advantage. First: easier cases.",
    "resume": "kubectl annotate rltj refunds -n team headway.dev/resume=NOW --overwrite",
}


def pauses(stage: Stage) -> None:
    """The last pod is gone, and coordinator and operator have written the pause into the status."""
    stage.set(pause=PAUSE | {"time": stamp(stage.now - timedelta(seconds=30))})
    for kind in ("Suspended", "Stalled"):
        stage.condition(kind, "True", "Paused", "paused at step 6: NothingToTrain: ...")


def ends_the_pause(stage: Stage) -> None:
    when = stage.body["status"]["pause"]["time"]
    stage.set(resumedPause=when).condition("Stalled", "False", "Reconciled")
    stage.condition(
        "Suspended", "False", "Resumed", f"the pause of {when} (NothingToTrain at step 6) was ended"
    )


LIFE: tuple[tuple[Callable[[Stage], object], tuple[str, str, str]], ...] = (
    (refused, ("Warning", "InvalidSpec", "too many servers")),
    (accepted, ("Normal", "Accepted", "can be run")),
    (lambda stage: stage.set(warnings=["too hot"]), ("Warning", "SpecUnwise", "too hot")),
    (says("PreflightPassed", "Unknown", "Running"), ("", "", "")),
    (says("PreflightPassed", "True", "Passed", "9 checks passed"), ("Normal", "PreflightPassed", "9 checks")),
    (starts, ("Normal", "Started", "40 steps")),
    (steps(1), ("Normal", "Checkpointed", "step 1 of 40: s3://b/1")),
    (steps(2), ("", "", "")),
    (steps(4), ("Normal", "Checkpointed", "step 4 of 40")),
    (validates(0, "0.2"), ("", "", "")),
    (validates(5, "0.31"),
     ("Normal", "ValidatedBest", "step 5 has the best validation so far: external score 0.31")),
    (restarts(1), ("Warning", "Restarted", "learner was started again after a failure, 1 times so far: pod")),
    (restarts(2), ("Warning", "Restarted", "2 times")),
    (says("WeightsInSync", "True", "Synced"), ("", "", "")),
    (says("WeightsInSync", "False", "UpdateFailed", "s1: no"),
     ("Warning", "WeightsOutOfSync", "UpdateFailed: s1: no")),
    (says("WeightsInSync", "True", "Synced", "all hold them"), ("Normal", "WeightsInSync", "all hold them")),
    (says("Stalled", "True", "NoProgress", "learner: no batch"),
     ("Warning", "Stalled", "NoProgress: learner: no batch")),
    (says("Stalled", "True", "NoProgress", "in other words"), ("", "", "")),
    (says("Stalled", "False", "Reconciled"),
     ("Normal", "NoLongerStalled", "had been stalled since 2026-11-01 12:1")),
    (signals(("RewardCollapsed", "Suspect", 6)),
     ("Normal", "SignalSuspected", "RewardCollapsed since step 6: 0.01 against 0.2. the reward fell")),
    (signals(("RewardCollapsed", "Raised", 7), healthy="False"),
     ("Warning", "SignalRaised", "RewardCollapsed since step 7: 0.01 against 0.2. the reward fell; lower")),
    (signals(("RewardCollapsed", "Clear", 9)),
     ("Normal", "SignalCleared", "RewardCollapsed, raised since step 7, is clear since step 9")),
    (says("Healthy", "False", "EpisodesFailing", "tool pay raised"),
     ("Warning", "EpisodesFailing", "tool pay raised")),
    (says("Healthy", "False", "EpisodesFailing", "tool pay raised, and more"), ("", "", "")),
    (says("Healthy", "True", "NoSignalRaised"),
     ("Normal", "EpisodesRecovered", "one had recurred since 2026-11-01 12:1")),
    (says("Suspended", "True", "Suspended"), ("Normal", "Suspended", "step 4 of 40, external score 0.31")),
    (says("Suspended", "False", "Resumed"),
     ("Normal", "Resumed", "spec.suspend is false again; step 4 of 40")),
    (lambda stage: stage.set(pause=PAUSE | {"time": stamp(stage.now)}), ("", "", "")),
    (pauses, ("Warning", "Paused", "NothingToTrain at step 6 of 40: every pod is gone. To go on: kubectl")),
    (ends_the_pause, ("Normal", "Resumed", "(NothingToTrain at step 6) was ended; step 4 of 40")),
    (estimates("Data", "0.91", unpriced=["judgePrompt"]),
     ("Normal", "Estimated", "the whole job costs 0.91 USD, at least 0.10 and at most 9.00, without judgeP")),
    (estimates("Preflight", "1.20"), ("Normal", "Estimated", "by the episodes of its preflight, the whole")),
    (estimates("Preflight", None), ("", "", "")),
    (estimates("Running", "1.25"), ("Normal", "Estimated", "by the episodes it has played, the whole job")),
    (estimates("Running", "1.31"), ("", "", "")),
    (lambda stage: stage.set(usage={"cost": "12.5"}), ("", "", "")),
    (steps(40), ("Normal", "Checkpointed", "step 40 of 40")),
    (says("Complete", "True", "MaxStepsReached", "40 steps"),
     ("Normal", "Complete", "40 steps; step 40 of 40, external score 0.31, 12.5 USD")),
)  # fmt: skip
"""Changes of a training job's status in order, with the event of each, or empty texts if there is none."""


def test_each_transition_has_one_event_with_its_numbers(stage: Stage) -> None:
    for number, (change, (kind, reason, words)) in enumerate(LIFE):
        change(stage.later(0.75))
        recorded = stage.look()
        assert stage.look() == [], "looking again tells nothing"
        if not reason:
            assert recorded == [], number
            continue
        ((found_kind, found_reason, message),) = recorded
        assert (found_kind, found_reason) == (kind, reason)
        assert words in message, message


@pytest.mark.parametrize("moment", range(len(LIFE)))
@pytest.mark.parametrize("looked", [True, False], ids=["after it was told", "before it is told"])
def test_a_restart_at_any_time_loses_and_repeats_no_event(
    monkeypatch: pytest.MonkeyPatch, moment: int, looked: bool
) -> None:
    books = []
    for restarted in (False, True):
        stage = Stage(monkeypatch)
        stage.look()
        for number, (change, _) in enumerate(LIFE):
            change(stage.later(0.75))
            if not restarted or number != moment or looked:
                stage.look()
            if restarted and number == moment:
                stage.restart().look()
        books.append({name: body["message"] for name, body in stage.book.kept.items()})
    assert books[0] == books[1]


def test_events_of_hours_ago_are_not_repeated_by_a_new_operator(stage: Stage) -> None:
    for change, _ in LIFE[:-1]:
        change(stage.later(0.75))
        stage.look()
    signals(("RewardCollapsed", "Raised", 30), healthy="False")(stage)
    stage.look()
    stage.later(180)
    assert stage.book.kept == {}
    assert stage.restart().look() == []
    steps(12)(stage)
    validates(10, "0.4")(stage)
    restarts(3)(stage)
    assert sorted(stage.reasons()) == ["Checkpointed", "Restarted", "ValidatedBest"]


def test_a_job_that_ended_long_ago_has_no_new_event(stage: Stage) -> None:
    says("Failed", "True", "CrashLoop", "learner: exit code 1")(stage)
    stage.set(completionTime=stamp(stage.now)).look()
    asked = stage.book.asked
    assert stage.later(120).restart().look() == []
    assert stage.book.asked == asked, "nobody asks for the events of a job that ended long ago"


def test_the_event_of_a_failure_has_its_reason(stage: Stage) -> None:
    says("Stalled", "True", "NoProgress")(stage)
    stage.look()
    says("Failed", "True", "CheckpointUnusable", "step 12 is damaged")(stage)
    ((kind, reason, message),) = stage.look()
    assert (kind, reason) == ("Warning", "Failed")
    assert message == "CheckpointUnusable: step 12 is damaged; nothing has been done yet"
    says("Stalled", "False", "Reconciled")(stage)
    assert stage.look() == [], "what the end cut short has not got better"


@pytest.mark.parametrize(
    ("change", "reason", "kind"),
    [
        (says("PreflightPassed", "False", "CheckFailed", "spec.model: gone"), "PreflightFailed", "Warning"),
        (says("PreflightPassed", "False", "Warned", "spec.data: short"), "PreflightWarned", "Warning"),
        (says("PreflightPassed", "Unknown", "Skipped"), "", ""),
        (says("Stalled", "True", "Suspended"), "", ""),
        (says("Stalled", "True", "Paused"), "", ""),
        (says("WeightsInSync", "Unknown", "Pending"), "", ""),
        (says("Suspended", "False", "NotSuspended"), "", ""),
    ],
)
def test_every_other_transition_has_its_event_or_no_event(
    stage: Stage, change: Callable[[Stage], object], reason: str, kind: str
) -> None:
    change(stage)
    assert [(found, of) for of, found, _ in stage.look()] == ([(reason, kind)] if reason else [])


def test_each_price_correction_and_refused_book_has_one_event(stage: Stage) -> None:
    gone = "ConfigMap ours, key prices.yaml: it is gone; the previous edition stays in force"
    book = {"priceBook": "ours@2026-01-01", "priceBookHash": "0123456789ab"}
    recorded = []
    for used in ({"priceCorrections": 1}, {"priceCorrections": 2, "priceBookProblem": gone}):
        stage.set(usage=book | used)
        recorded += stage.look()
        assert stage.look() == []
    assert [reason for _, reason, _ in recorded] == ["PricesCorrected", "PricesCorrected", "PriceBookInvalid"]
    assert "SHA-256 0123456789ab" in recorded[0][2]
    assert (recorded[2][0], recorded[2][2]) == ("Warning", gone)


def test_a_check_that_fails_after_a_warning_has_an_event_too(stage: Stage) -> None:
    says("PreflightPassed", "False", "Warned")(stage)
    assert stage.reasons() == ["PreflightWarned"]
    says("PreflightPassed", "False", "CheckFailed")(stage)
    assert stage.reasons() == ["PreflightFailed"]


def test_each_refused_spec_has_an_event(stage: Stage) -> None:
    for generation in (1, 2):
        stage.condition("Accepted", "False", "InvalidSpec", "no", generation)
        assert stage.reasons() == ["InvalidSpec"]
        assert stage.look() == []


def test_the_first_training_has_an_event_and_no_later_one(stage: Stage) -> None:
    starts(stage)
    assert stage.reasons() == ["Started"]
    says("Progressing", "False", "CrashLoop")(stage)
    stage.set(progress={"step": 3, "maxSteps": 40}).look()
    stage.later(120).restart().look()
    says("Progressing", "True", "Stepping")(stage)
    assert "Started" not in stage.reasons()


def test_checkpoints_have_one_event_for_each_tenth_of_the_steps(stage: Stage) -> None:
    stage.set(progress={"step": 0, "maxSteps": 100})
    count = 0
    for step in range(1, 101):
        steps(step)(stage.set())
        stage.set(progress={"step": step, "maxSteps": 100})
        count += len(stage.look())
    assert count == 11


def test_an_endless_job_has_an_event_of_its_first_checkpoint(stage: Stage) -> None:
    for step in (0, 1, 2, 3):
        stage.set(progress={"step": step}, checkpoints={"latest": {"step": step, "uri": "s3://b/c"}})
        assert stage.reasons() == (["Checkpointed"] if step == 1 else [])


def test_a_pause_has_one_event_with_its_cause_and_how_to_resume(stage: Stage) -> None:
    pauses(stage)
    ((_, _, message),) = stage.look()
    assert message == (
        "NothingToTrain at step 6: every pod is gone. To go on: kubectl annotate rltj refunds -n team "
        "headway.dev/resume=NOW --overwrite; 0 of 4 groups had an advantage. First: easier cases."
    )
    says("Suspended", "True", "Suspended")(stage.later(10))
    assert stage.reasons() == ["Suspended"], "a person has suspended it too"
    says("Suspended", "True", "Paused")(stage.later(10))
    assert stage.look() == []
    assert stage.restart().look() == []
    ends_the_pause(stage.later(10))
    assert stage.reasons() == ["Resumed"]
    pauses(stage.later(5))
    assert stage.reasons() == ["Paused"], "another one"


def test_a_starting_operator_records_a_pause_it_did_not_see(stage: Stage) -> None:
    starts(stage)
    stage.look()
    stage.set(pause=PAUSE | {"time": stamp(stage.now)}).later(90).restart()
    status = parse_status(job_kind_of(stage.body).model, stage.body)
    stage.operator.look(stage.body, status)
    for kind in ("Suspended", "Stalled"):
        stage.condition(kind, "True", "Paused")
    assert stage.reasons() == ["Paused"]
    assert stage.restart().look() == []
    assert stage.later(90).restart().look() == []


def test_a_long_pause_message_does_not_cut_the_command(stage: Stage) -> None:
    stage.set(pause=PAUSE | {"message": "m" * 1024, "time": stamp(stage.now)})
    says("Suspended", "True", "Paused")(stage)
    ((_, _, message),) = stage.look()
    assert PAUSE["resume"] in message
    assert message.endswith("m...")


def test_an_evaluation_has_an_event_of_its_estimated_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, eval_job())
    stage.look()
    estimates("Data", "0.91", unpriced=["endpointPrompt"])(stage.later())
    [(kind, reason, message)] = stage.look()
    assert (kind, reason) == ("Normal", "Estimated")
    assert message.startswith(
        "by its data and limits, the whole job costs 0.91 USD, at least 0.10 and at most"
    )
    assert message.endswith("without endpointPrompt")
    estimates("Running", "1.20")(stage.later())
    [(_, _, message)] = stage.look()
    assert message.startswith("by the episodes it has played, the whole job costs 1.20 USD")
    estimates("Running", "1.25")(stage.later())
    assert stage.look() == []


def test_an_evaluation_has_events_of_its_gate_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, eval_job())
    stage.look()
    stage.set(candidates=[{"name": "base", "kind": "Model"}], progress={"groups": 0, "ofGroups": 64})
    says("Progressing", "True", "Evaluating")(stage)
    assert stage.look() == [("Normal", "Started", "the evaluation of 1 candidates began: 64 rows")]
    says("GatePassed", "False", "GateNotPassed", "0.7 (0.6 to 0.8) is not above 0.8")(stage)
    assert stage.look() == [("Warning", "GateRefused", "0.7 (0.6 to 0.8) is not above 0.8")]
    says("GatePassed", "True", "Passed", "0.9 (0.85 to 0.95)")(stage.later())
    stage.set(progress={"groups": 64, "ofGroups": 64})
    says("Complete", "True", "Evaluated", "1 of 1 candidates were measured")(stage)
    passed, complete = stage.look()
    assert passed == ("Normal", "GatePassed", "0.9 (0.85 to 0.95)")
    assert complete == ("Normal", "Complete", "1 of 1 candidates were measured; 64 of 64 rows")


def test_a_new_job_of_the_same_name_has_events_of_its_own(stage: Stage) -> None:
    accepted(stage)
    assert stage.reasons() == ["Accepted"]
    stage.body = job()
    stage.body["metadata"]["uid"] = "another"
    stage.look()
    accepted(stage)
    assert stage.reasons() == ["Accepted"]


def test_events_are_stamped_by_when_it_happened(stage: Stage) -> None:
    accepted(stage)
    stage.later(2).look()
    ((name, body),) = stage.book.kept.items()
    assert name == f"refunds.{UID}.accepted.{int(START.timestamp())}"
    assert body["lastTimestamp"] == stamp(START)
    assert body["involvedObject"]["uid"] == UID


@pytest.mark.parametrize(
    ("refusal", "again"),
    [
        (ApiError(409, "AlreadyExists", "there is one"), False),
        (ApiError(403, "Forbidden", "the namespace is being terminated"), False),
        (ApiError(503, "ServiceUnavailable", "later"), True),
        (urllib3.exceptions.ReadTimeoutError(None, "/", "slow"), True),  # type: ignore[arg-type]
    ],
)
def test_an_event_that_cannot_be_recorded_now_is_recorded_later(
    stage: Stage, refusal: Exception, again: bool
) -> None:
    accepted(stage)
    stage.book.refusal = refusal
    assert stage.look() == []
    stage.book.refusal = None
    assert stage.reasons() == (["Accepted"] if again else [])


def test_unreadable_events_are_recorded_again_by_the_same_name(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted(stage)
    stage.look()

    def refuse(*_: Any, **__: Any) -> Any:
        raise ApiError(403, "Forbidden", "events")

    monkeypatch.setattr(stage.book, "list", refuse)
    assert stage.restart().look() == []
    assert len(stage.book.kept) == 1


@pytest.mark.parametrize(
    "what", ["stalled", "weightsoutofsync", "signalraised.rewardcollapsed", "signalsuspected.repetition"]
)
@pytest.mark.parametrize("when", ["", "soon", "9" * 18, "-" + "9" * 18, "\N{SUPERSCRIPT TWO}"])
def test_an_event_that_somebody_forged_stops_no_job(stage: Stage, what: str, when: str) -> None:
    accepted(stage)
    says("WeightsInSync", "True", "Synced")(stage)
    stage.look()
    about = {"involvedObject": {"uid": UID}, "reportingComponent": events.REPORTER}
    forged = f"refunds.{UID}.{what}.{when}"
    stage.book.kept[forged] = about | {"metadata": {"name": forged}, "lastTimestamp": stamp(stage.now)}
    assert stage.restart().look() == []
    starts(stage)
    assert stage.reasons() == ["Started"]


def test_each_event_is_explained() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "operations.md").read_text()
    table = text.partition("## Events")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*)\|", table, re.MULTILINE)
    explained = {name for row in rows for name in row.split("`")[1::2]}
    of_others = {"PreflightWarned", "PreflightFailed", "Failed", "GatePassed", "GateRefused"}
    of_others |= {*map(str, CANNOT_START), *map(str, AWAITED)}
    changes = {f"Remedy{state}" for state in ("Taken", *get_args(RemedyState)) if state != "Watching"}
    life = {reason for _, (_, reason, _) in LIFE if reason}
    assert explained == life | of_others | changes | {
        "BudgetLow",
        "BudgetExhausted",
        "OrderRefused",
        "FailureRuleMatched",
        "PricesCorrected",
        "PriceBookInvalid",
    }


def test_a_long_message_is_cut_as_the_api_server_wants_it() -> None:
    event = events.event(job(), Fact("failed.1", "Failed", "a" * 900 + "b" * 900), START)
    assert len(event["message"]) == events.MESSAGE_LIMIT
    assert event["message"].endswith("b...")
