"""The remedies so far, read from records, with restarts, repeated steps and two coordinators."""

from __future__ import annotations

import pytest
from job_rig import report
from played_jobs import Story
from pydantic import ValidationError

from headway_analysis.remedies.course import course
from headway_analysis.remedies.policy import decide, obey
from headway_api.decisions import Decision, Kept
from headway_api.in_force import Directive, InForce
from headway_api.signals import SignalName as S


def a_decision(number: int, step: int) -> Decision:
    return Decision(
        number=number,
        step=step,
        directive=Directive(remedy="OnPolicy"),
        in_force=InForce(number=number, max_steps_off_policy=0),
        why="because",
    )


def test_a_decision_whose_step_was_not_taken_is_pending() -> None:
    found = course([a_decision(1, 4)], {}, [report(step) for step in range(4)])
    assert found.entries == ()
    assert found.due(4) == a_decision(1, 4)
    assert found.due(5) is None
    assert found.numbered == 1


def test_nothing_is_decided_while_a_decision_is_pending() -> None:
    story = Story().train(30).raise_(S.GROUPS_UNIFORM)
    first = decide(story.now())
    assert isinstance(first, Decision)
    story.decisions.append(first)
    assert decide(story.now()) is None


def test_repeated_steps_have_their_old_decisions() -> None:
    """The learner died, and resumed at a checkpoint from before the remedy's step."""
    story = Story().train(30).raise_(S.GROUPS_UNIFORM)
    first = decide(story.now())
    story.carry_out(first).train(2)
    whole = list(story.reports)
    story.reports = whole[:29]
    assert story.now().course.entries == ()
    assert story.now().course.due(31) == first
    story.reports = whole
    assert [entry.state for entry in story.now().course.entries] == ["Watching"]


def test_a_replaced_coordinators_decision_has_no_effect() -> None:
    """Its step was trained with groups instead. Its number is not used again."""
    story = Story().train(30).raise_(S.GROUPS_UNIFORM)
    story.decisions.append(a_decision(1, 5))
    found = story.now().course
    assert (found.entries, found.pending, found.numbered) == ((), (), 1)
    following = decide(story.now())
    assert isinstance(following, Decision)
    assert following.number == 2


def test_the_order_in_which_records_are_read_changes_nothing() -> None:
    story = Story().train(30).raise_(S.GROUPS_UNIFORM)
    for _ in range(3):
        story.carry_out(decide(story.now())).train(25)
    decisions = story.decisions
    assert len(decisions) == 3
    found = course(decisions, {}, story.reports)
    assert course(decisions[::-1], {}, story.reports) == found


def test_what_a_person_ordered_is_known_by_its_words() -> None:
    story = Story().train(3)
    story.carry_out(obey("OnPolicy", story.now())).train(1)
    story.carry_out(obey("SmallerGroups", story.now()), refused="no")
    later = obey("ReferenceKl@7", story.now())
    assert isinstance(later, Decision)
    story.decisions.append(later)
    assert story.now().course.orders == {"OnPolicy", "SmallerGroups", "ReferenceKl@7"}
    story.decisions.pop()
    story.carry_out(obey("Undo@1", story.now()))
    assert "Undo@1" in story.now().course.orders
    story.decisions.append(a_decision(9, 2).model_copy(update={"order": "LargerBatch"}))
    assert "LargerBatch" not in story.now().course.orders, "another coordinator trained that step"


def test_a_finished_watch_stays_finished() -> None:
    story = Story().train(30).raise_(S.GROUPS_UNIFORM)
    story.carry_out(decide(story.now())).train(25, 0.8).calm()
    kept = decide(story.now())
    assert isinstance(kept, Kept)
    story.carry_out(kept).raise_(S.GROUPS_UNIFORM).train(3, 0.0)
    [entry] = story.now().course.entries
    assert (entry.state, entry.why, entry.after) == ("Kept", kept.why, kept.after)


def test_records_come_back_as_they_were_and_say_one_thing() -> None:
    first = a_decision(1, 4)
    assert Decision.model_validate_json(first.model_dump_json()) == first
    with pytest.raises(ValidationError, match="brings what has the number 2"):
        Decision.model_validate(first.model_dump() | {"in_force": {"number": 2}})
    with pytest.raises(ValidationError, match="undoes must be set"):
        Decision.model_validate(first.model_dump() | {"undoes": 1, "number": 1})
