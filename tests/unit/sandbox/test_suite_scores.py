"""Scores of Inspect AI become numbers. A value that cannot be read never counts as a wrong answer."""

from __future__ import annotations

import math
from typing import Any

import pytest
from inspect_ai.scorer import value_to_float

from headway_sandbox.suites.program import HINT, UnusableTaskError, judged


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *(("C", 1.0), ("P", 0.5), ("I", 0.0), ("N", 0.0)),
        *(("yes", 1.0), ("True", 1.0), ("NO", 0.0), ("false", 0.0)),
        *((True, 1.0), (False, 0.0), (3, 3.0), (-0.25, -0.25), ("0.25", 0.25), ("-5", -5.0), ("1e3", 1000.0)),
    ],
)
def test_a_value_that_inspect_reads_is_its_number(value: Any, number: float) -> None:
    assert value_to_float()(value) == number, "what this release of Inspect makes of it"
    assert judged({"first": value}) == {"value": number, "metrics": {"first": number}}


@pytest.mark.parametrize("value", ["", "A", "c", "correct", "partly", "0,5", "7/10", "nan", "inf", None])
def test_a_value_that_inspect_reads_as_zero_is_not_a_score(value: Any) -> None:
    assert value_to_float()(value) == 0.0, "with a warning alone"
    with pytest.raises(UnusableTaskError) as refused:
        judged({"first": value, "second": 1.0})
    assert str(refused.value) == f"the first scorer gave {value!r} as first, which is not a score; {HINT}"
    assert refused.value.field == "task"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_not_a_score(value: float) -> None:
    with pytest.raises(UnusableTaskError, match="which is not a score"):
        judged({"first": value})


@pytest.mark.parametrize("value", [{}, []])
def test_a_first_scorer_without_value_is_refused_despite_others(value: Any) -> None:
    with pytest.raises(UnusableTaskError) as refused:
        judged({"first": value, "second": 1.0})
    assert str(refused.value) == f"the first scorer, first, gave {value!r}, which has no score; {HINT}"


def test_the_first_part_of_the_first_scorer_decides() -> None:
    assert judged({"parts": {"right": "I", "brief": 0.25}, "second": "C"}) == {
        "value": 0.0,
        "metrics": {"parts_right": 0.0, "parts_brief": 0.25, "second": 1.0},
    }
    assert judged({"list": ["P", 2]}) == {"value": 0.5, "metrics": {"list_0": 0.5, "list_1": 2.0}}
    with pytest.raises(UnusableTaskError, match="gave 'A' as parts_letter, which is not a score"):
        judged({"parts": {"letter": "A", "right": "C"}})


def test_unreadable_values_of_other_scorers_are_left_out() -> None:
    values = {"first": "C", "letter": "A", "none": math.nan, "parts": {"a": None, "b": "no"}, "empty": {}}
    assert judged(values) == {"value": 1.0, "metrics": {"first": 1.0, "parts_b": 0.0}}


def test_a_name_clash_of_scorers_keeps_the_first_ones_value() -> None:
    assert judged({"x": {"y": 1.0}, "x_y": 0.0})["value"] == 1.0
