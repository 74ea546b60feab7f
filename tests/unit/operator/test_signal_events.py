"""Events of signals that become suspect, raised, or clear again."""

from __future__ import annotations

from collections import Counter

import pytest
from event_stage import Stage, signals
from observed_cluster import stamp

from headway_api.signals import MAX_SHOWN_SIGNALS, SignalName
from headway_api.status import RLTrainingJobStatus
from headway_operator.plan import signal_facts

STEPS = 100
NAME = "Repetition"


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A job of 100 steps that the operator saw from its beginning."""
    made = Stage(monkeypatch).set(progress={"step": 0, "maxSteps": STEPS})
    made.set(startTime=stamp(made.now)).look()
    return made


def is_in(stage: Stage, state: str, since: int) -> Stage:
    """Set a signal's state, with the step since which it holds."""
    signals((NAME, state, since), healthy="False" if state == "Raised" else "True")(stage)
    return stage


def test_each_signal_has_its_own_events(stage: Stage) -> None:
    first, second = ("RewardCollapsed", "Raised", 7), ("Repetition", "Raised", 8)
    signals(first, healthy="False")(stage)
    assert stage.reasons() == ["SignalRaised"]
    signals(first, second, healthy="False")(stage)
    ((_, _, message),) = stage.look()
    assert message == "Repetition since step 8"
    signals(second, ("RewardCollapsed", "Suspect", 9), healthy="False")(stage)
    (_, reason, message), suspected = stage.look()
    assert (reason, message) == (
        "SignalCleared",
        "RewardCollapsed, raised since step 7, is suspect since step 9",
    )
    assert suspected == ("Normal", "SignalSuspected", "RewardCollapsed since step 9")
    signals(("RewardCollapsed", "Raised", 12), second, healthy="False")(stage)
    ((_, reason, message),) = stage.look()
    assert (reason, message[:29]) == ("SignalRaised", "RewardCollapsed since step 12")


def test_a_signal_cleared_without_an_operator_has_a_clear_event(stage: Stage) -> None:
    signals(("RewardCollapsed", "Raised", 7), healthy="False")(stage)
    stage.look()
    signals(("EntropyFalling", "Clear", 2))(stage.later(5))
    ((_, reason, message),) = stage.restart().look()
    assert (reason, message) == ("SignalCleared", "RewardCollapsed, raised since step 7, is clear")


@pytest.mark.parametrize(("minutes", "expected"), [(45, ["SignalRaised"]), (75, [])])
def test_a_second_signal_raised_without_an_operator_has_an_event(
    stage: Stage, minutes: float, expected: list[str]
) -> None:
    """It has one only while the first one's event exists: the status lacks the time of the second."""
    first = ("RewardCollapsed", "Raised", 7)
    signals(first, healthy="False")(stage)
    stage.look()
    signals(first, ("Repetition", "Raised", 50), healthy="False")(stage.later(minutes))
    assert stage.restart().reasons() == expected
    assert stage.restart().look() == []


def test_a_signal_raised_before_another_is_not_recorded_again(stage: Stage) -> None:
    signals(("RewardCollapsed", "Raised", 7), healthy="False")(stage)
    stage.look()
    second = ("Repetition", "Raised", 50)
    signals(("RewardCollapsed", "Raised", 7), second, healthy="False")(stage.later(50))
    assert stage.reasons() == ["SignalRaised"]
    assert stage.later(20).restart().look() == [], "the first one's event is gone, the second's is not"


def test_an_unknown_signal_has_no_event(stage: Stage) -> None:
    signals(("RewardCollapsed", "Raised", 7), healthy="False")(stage)
    stage.look()
    signals(healthy="Unknown")(stage)
    assert stage.look() == []
    signals(("RewardCollapsed", "Unknown", 0), healthy="Unknown")(stage)
    assert stage.look() == []
    others = [(str(name), "Raised", 9) for name in list(SignalName)[1:17]]
    signals(*others, healthy="False")(stage)
    assert set(stage.reasons()) == {"SignalRaised"}, "the list may have been too short for it"


def test_a_suspect_signals_numbers_and_end_have_one_event_each(stage: Stage) -> None:
    words = "Repetition since step 31: 0.01 against 0.2. the reward fell; lower the rate"
    assert is_in(stage, "Suspect", 31).look() == [("Normal", "SignalSuspected", words)]
    assert stage.look() == []
    cleared = ("Normal", "SignalCleared", "Repetition was suspect, and is clear since step 33")
    assert is_in(stage, "Clear", 33).look() == [cleared]
    assert stage.look() == []


def test_a_suspect_signal_has_one_event_across_restarts(stage: Stage) -> None:
    assert is_in(stage, "Suspect", 31).reasons() == ["SignalSuspected"]
    for minutes in (1, 20, 50, 100):
        assert stage.later(minutes).restart().look() == []
    is_in(stage, "Clear", 33)
    assert stage.restart().look() == [], "nothing is left of what a predecessor told two hours ago"


def test_a_suspicion_ended_without_an_operator_has_a_clear_event(stage: Stage) -> None:
    is_in(stage, "Suspect", 31).look()
    is_in(stage.later(5), "Clear", 33)
    assert stage.restart().reasons() == ["SignalCleared"]
    assert stage.restart().look() == []


@pytest.mark.parametrize("restarts", [False, True])
def test_a_flapping_signal_has_each_event_once_per_tenth_of_job(stage: Stage, restarts: bool) -> None:
    counts = Counter[str]()
    for step in range(1, STEPS + 1):
        counts.update(is_in(stage.later(0.1), "Suspect" if step % 2 else "Clear", step).reasons())
        if restarts:
            stage.restart()
    assert counts == {"SignalSuspected": 10, "SignalCleared": 10}


def test_a_suspect_signal_of_an_endless_job_has_one_event(stage: Stage) -> None:
    stage.set(progress={"step": 0})
    by_step = [is_in(stage, "Suspect" if step % 2 else "Clear", step).reasons() for step in range(1, 50)]
    assert [reasons for reasons in by_step if reasons] == [["SignalSuspected"], ["SignalCleared"]]


@pytest.mark.parametrize("raised", [32, 45])
def test_a_suspect_then_raised_signal_is_cleared_once(stage: Stage, raised: int) -> None:
    assert is_in(stage, "Suspect", 31).reasons() == ["SignalSuspected"]
    assert is_in(stage, "Raised", raised).reasons() == ["SignalRaised"]
    cleared = f"Repetition, raised since step {raised}, is clear since step 60"
    assert is_in(stage, "Clear", 60).look() == [("Normal", "SignalCleared", cleared)]
    assert stage.restart().look() == []
    assert is_in(stage, "Suspect", 71).reasons() == ["SignalSuspected"]
    assert is_in(stage, "Clear", 72).reasons() == ["SignalCleared"]


@pytest.mark.parametrize(
    ("last", "expected"), [("Clear", ["SignalCleared"]), ("Suspect", []), ("Unknown", [])]
)
def test_an_unlisted_suspect_signal_is_clear_only_if_it_must_be(
    stage: Stage, last: str, expected: list[str]
) -> None:
    is_in(stage, "Suspect", 31).look()
    others = [str(name) for name in SignalName if name != NAME][:MAX_SHOWN_SIGNALS]
    signals(*((name, "Suspect", 40) for name in others[:-1]), (others[-1], last, 40))(stage)
    reasons = [reason for _, reason, words in stage.look() if words.startswith(NAME)]
    assert reasons == expected


@pytest.mark.parametrize(
    ("when", "count"), [("", 0), ("soon", 0), ("-3", 0), ("\N{SUPERSCRIPT TWO}", 0), ("3", 1)]
)
def test_an_event_key_without_a_tenth_is_ignored(stage: Stage, when: str, count: int) -> None:
    status = RLTrainingJobStatus.model_validate(is_in(stage, "Clear", 33).body["status"])
    assert len([*signal_facts.cleared(f"signalsuspected.repetition.{when}", (), status)]) == count
