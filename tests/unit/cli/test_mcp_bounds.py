"""What `headway mcp` cuts from an answer, and how the answer says so."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from headway_cli.mcp_server import bounds, words
from headway_cli.mcp_server.bounds import AnswerTooLongError, fitted
from headway_cli.mcp_server.definition import Arguments

TEXTS = st.text(st.characters(categories=None), max_size=300)
"""Texts of any characters, including control characters and halves of surrogate pairs."""
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(TEXTS, inner, max_size=8),
    max_leaves=60,
)
ANSWERS = st.dictionaries(TEXTS, VALUES, max_size=6)


@given(ANSWERS, st.integers(200, 4000))
def test_an_answer_fits_or_is_refused(answer: dict[str, Any], maximum: int) -> None:
    try:
        made, _ = fitted(answer, maximum)
    except AnswerTooLongError:
        assert bounds.size(answer) > maximum / 10
        return
    assert bounds.size(made) <= maximum


@given(ANSWERS)
def test_an_answer_is_utf_8_and_json_without_odd_numbers(answer: dict[str, Any]) -> None:
    made, _ = fitted(answer, 1_000_000)
    data = json.dumps(made, ensure_ascii=False, allow_nan=False).encode()
    assert json.loads(data) == made


@given(
    st.dictionaries(st.text("ab", max_size=5), st.integers() | st.text("xyz<>\"'\n", max_size=50), max_size=6)
)
def test_an_answer_that_fits_is_unchanged(answer: dict[str, Any]) -> None:
    assert fitted(answer) == (answer, [])


def test_a_long_text_is_cut_at_its_end_and_listed_as_cut() -> None:
    made, cut = fitted({"a": [{"b": "x" * 100}]}, text=10)
    assert made == {"a": [{"b": "x" * 10}]}
    assert cut == ["a/0/b: 10 of 100 characters"]


def test_a_long_list_keeps_its_beginning() -> None:
    made, cut = fitted({"a": [*range(100_000)]})
    assert made["a"][:3] == [0, 1, 2]
    assert cut == [f"a: {len(made['a'])} of 100000 entries"]


def test_many_cuts_are_counted() -> None:
    _, cut = fitted({"a": ["x" * 100] * 50}, text=10)
    assert len(cut) == bounds.MAX_LISTED + 1
    assert cut[-1] == "30 more places were cut"


def test_an_untrusted_name_cannot_forge_a_notice_of_a_cut() -> None:
    _, cut = fitted({"a\nb: 1 of 2 characters" + "c" * 99: "x" * 100}, text=50)
    assert len(cut) == 1
    assert cut[0].endswith(": 50 of 100 characters")
    assert "\n" not in cut[0]
    assert len(cut[0]) < 90


def test_values_beyond_the_maximum_depth_are_left_out() -> None:
    value: Any = 1
    for _ in range(500):
        value = [value]
    made, cut = fitted({"a": value})
    assert bounds.size(made) < 100
    assert cut[0].endswith("0 of 1 entries")


def test_an_answer_of_too_many_parts_is_refused() -> None:
    value: Any = "x"
    for _ in range(8):
        value = [value] * 6
    with pytest.raises(AnswerTooLongError):
        fitted({"a": value}, 2000)


@given(st.lists(st.integers(), max_size=200), st.integers(2, 50))
def test_thinned_points_keep_their_ends(points: list[int], maximum: int) -> None:
    found = bounds.thinned(points, maximum)
    assert len(found) <= max(maximum, 0)
    assert found[:1] == points[:1]
    assert found[-1:] == points[-1:]


@given(st.lists(st.text("ab", max_size=60), min_size=1, max_size=30), st.integers(1, 500))
def test_the_first_rows_that_fit_are_kept(texts: list[str], maximum: int) -> None:
    rows = [{"t": each} for each in texts]
    kept = bounds.first_that_fit(rows, maximum)
    assert kept == rows[: len(kept)]
    assert len(kept) == 1 or sum(map(bounds.size, kept)) <= maximum
    assert len(kept) == len(rows) or sum(map(bounds.size, rows[: len(kept) + 1])) > maximum


class Asked(Arguments):
    limit: int = Field(1, ge=1)
    set_: tuple[str, ...] = Field((), alias="set")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"limit": 0}, "limit is 0: write 1 or more (arguments: limit, set)"),
        ({"limits": 1}, "limits: there is no such field; did you mean limit? (arguments: limit, set)"),
        ({"set_": []}, "set_: there is no such field; did you mean set? (arguments: limit, set)"),
    ],
)
def test_a_wrong_argument_is_named_in_words(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Asked.model_validate(arguments)
    assert words.of_arguments(caught.value, Asked) == says
