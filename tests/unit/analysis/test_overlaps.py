"""When two rows count as alike, and which rows are reported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_analysis.overlaps import Pair, content, normalized, repeated, shared

keys = st.lists(st.integers(0, 5), max_size=12)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Refund order 7, please.", "refund  ORDER 7 please"),
        ("Straße", "STRASSE"),
        ("width １２", "width 12"),
        ("a\n\tb", "a b"),
    ],
)
def test_copies_that_differ_in_form_alone_are_alike(one: str, other: str) -> None:
    assert normalized(one) == normalized(other)


@pytest.mark.parametrize(
    ("one", "other"), [("order 7", "order 8"), ("3-2", "32"), ("?", "!"), ("1+1", "1 1")]
)
def test_texts_that_differ_in_words_are_not_alike(one: str, other: str) -> None:
    assert normalized(one) != normalized(other)


def test_a_row_is_its_values_in_any_order_of_columns() -> None:
    assert content({"a": 1, "b": [1, 2]}) == content({"b": [1, 2], "a": 1})
    assert content({"a": 1}) != content({"a": "1"})


@given(keys, keys)
def test_shared_rows_name_the_first_one_like_them(rows: list[int], others: list[int]) -> None:
    expected = [Pair(number, others.index(key)) for number, key in enumerate(rows) if key in others]
    assert shared(rows, others) == expected


@given(keys)
def test_repeated_rows_name_the_first_of_their_kind(rows: list[int]) -> None:
    expected = [Pair(n, rows.index(key)) for n, key in enumerate(rows) if rows.index(key) < n]
    assert repeated(rows) == expected
