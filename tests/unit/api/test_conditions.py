"""Conditions keep their transition time and their order, and an update keeps those that it leaves out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from headway_api.conditions import (
    MESSAGE_LIMIT,
    Condition,
    ConditionType,
    Reason,
    condition,
    find,
    is_finished,
    is_true,
    merge,
)

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)

conditions = st.lists(
    st.builds(
        condition,
        st.sampled_from(ConditionType),
        st.sampled_from([True, False, None]),
        st.sampled_from(Reason),
        st.text(max_size=8),
        now=st.sampled_from([NOON, LATER]),
    ),
    max_size=6,
    unique_by=lambda it: it.type,
)


def test_transition_time_moves_with_the_status_only() -> None:
    old = [condition(ConditionType.READY, False, Reason.STARTING, "0 of 2", now=NOON)]
    same = merge(old, [condition(ConditionType.READY, False, Reason.STARTING, "1 of 2", now=LATER)])
    assert (same[0].last_transition_time, same[0].message) == (NOON, "1 of 2")
    changed = merge(same, [condition(ConditionType.READY, True, Reason.RUNNING, now=LATER)])
    assert changed[0].last_transition_time == LATER


@given(conditions, conditions)
def test_merging_twice_changes_nothing(old: list[Condition], new: list[Condition]) -> None:
    once = merge(old, new)
    assert merge(once, new) == once


@given(conditions, conditions)
def test_merging_keeps_conditions_that_are_not_mentioned(old: list[Condition], new: list[Condition]) -> None:
    merged = {known.type: known for known in merge(old, new)}
    mentioned = {known.type for known in new}
    assert all(merged[known.type] == known for known in old if known.type not in mentioned)
    assert {known.type for known in old} | mentioned == merged.keys()
    assert [known.type for known in old] == list(merged)[: len(old)]


def test_a_condition_is_found_and_judged() -> None:
    known = [condition(ConditionType.PROGRESSING, None, Reason.NOT_STARTED, now=NOON)]
    assert find(known, ConditionType.PROGRESSING) is known[0]
    assert find(known, ConditionType.FAILED) is None
    assert not is_true(known, ConditionType.PROGRESSING)
    assert not is_finished(known)
    assert is_finished([*known, condition(ConditionType.FAILED, True, Reason.PREFLIGHT_FAILED)])


def test_a_condition_is_written_as_kubernetes_writes_it() -> None:
    known = condition(ConditionType.READY, True, "MyReason", "x" * MESSAGE_LIMIT * 2, generation=3, now=NOON)
    written = known.as_object()
    assert len(written.pop("message")) == MESSAGE_LIMIT
    assert written == {
        "type": "Ready",
        "status": "True",
        "reason": "MyReason",
        "observedGeneration": 3,
        "lastTransitionTime": "2026-11-01T12:00:00Z",
    }
