"""Each change of a running job has an event when it is made, and another with its outcome."""

from __future__ import annotations

from typing import Any

import pytest

from headway_api.status import RLTrainingJobStatus
from headway_operator.plan.events import unrecorded
from headway_operator.plan.facts import Fact

MADE: dict[str, Any] = {
    "number": 2,
    "step": 41,
    "remedy": "OnPolicy",
    "signal": "RewardCollapsed",
    "action": "maxStepsOffPolicy 3 -> 0",
    "state": "Watching",
    "before": {"reward": "0.03 (0.02 to 0.04)", "steps": 10},
    "message": "RewardCollapsed: the reward is 0.03",
}
AFTER = {"reward": "0.64 (0.61 to 0.67)", "steps": 10}


def status(*changes: dict[str, Any], **others: Any) -> RLTrainingJobStatus:
    return RLTrainingJobStatus.model_validate({"remediations": list(changes), **others})


def pairs(facts: list[Fact]) -> list[tuple[str, str]]:
    return [(fact.reason, fact.message) for fact in facts]


def test_the_event_of_a_change_has_its_step_and_its_cause() -> None:
    assert pairs(unrecorded(status(MADE), set())) == [
        (
            "RemedyTaken",
            "step 41: OnPolicy (RewardCollapsed): maxStepsOffPolicy 3 -> 0; "
            "RewardCollapsed: the reward is 0.03",
        )
    ]


def test_an_order_of_a_person_is_named_by_its_words() -> None:
    ordered = {name: value for name, value in MADE.items() if name != "signal"} | {"order": "OnPolicy@2"}
    [(_, message)] = pairs(unrecorded(status(ordered), set()))
    assert message.startswith("step 41: OnPolicy (ordered: OnPolicy@2): maxStepsOffPolicy")


@pytest.mark.parametrize(
    ("state", "kind"), [("Kept", False), ("Undone", True), ("Replaced", False)], ids=lambda value: str(value)
)
def test_an_outcome_has_one_event_with_reward_before_and_after(state: str, kind: bool) -> None:
    known = {fact.key for fact in unrecorded(status(MADE), set())}
    ended = status(MADE | {"state": state, "after": AFTER, "watchedUntil": 66, "message": "it rose"})
    [fact] = unrecorded(ended, known)
    assert (fact.reason, fact.warning) == (f"Remedy{state}", kind)
    assert fact.message == (
        "step 41: OnPolicy (RewardCollapsed): reward 0.03 (0.02 to 0.04) before, 0.64 (0.61 to 0.67) after; "
        "it rose"
    )
    assert unrecorded(ended, known | {fact.key}) == []


def test_a_change_that_the_learner_refused_was_never_taken() -> None:
    refused = MADE | {"state": "Refused", "message": "NothingToRestore: none of [20] is whole"}
    [fact] = unrecorded(status(refused), set())
    assert (fact.reason, fact.warning) == ("RemedyRefused", True)
    assert fact.message.endswith("NothingToRestore: none of [20] is whole")


def test_the_next_change_has_its_own_event() -> None:
    known = {fact.key for fact in unrecorded(status(MADE), set())}
    assert [fact.reason for fact in unrecorded(status(MADE, MADE | {"number": 3, "step": 70}), known)] == [
        "RemedyTaken"
    ]


def test_an_order_that_is_refused_has_one_event_with_its_words() -> None:
    order = {"order": "Faster", "state": "Refused", "step": 4, "message": "it names no remedy"}
    [fact] = unrecorded(status(remedyOrder=order), set())
    assert pairs([fact]) == [("OrderRefused", "headway.dev/remedy=Faster: it names no remedy")]
    assert fact.warning
    assert unrecorded(status(remedyOrder=order), {fact.key}) == []
    [other] = unrecorded(status(remedyOrder=order | {"order": "Slower"}), {fact.key})
    assert other.key != fact.key


@pytest.mark.parametrize("state", ["Waiting", "Taken"])
def test_an_order_not_refused_has_no_event_of_its_own(state: str) -> None:
    assert unrecorded(status(remedyOrder={"order": "OnPolicy", "state": state}), set()) == []
