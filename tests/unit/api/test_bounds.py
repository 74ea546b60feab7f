"""Values from outside: which are read, and which are refused before they cost anything."""

from __future__ import annotations

import contextlib
import json
import re
import tracemalloc
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_api import bounds
from headway_api.bounds import (
    MIB,
    OutOfBoundsError,
    containers_within,
    json_elements,
    json_members,
    json_within,
    nesting,
    shortened,
    within,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_a_value_within_bounds_is_read_unchanged(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        assert json_within(text, MIB) == json_within(text.encode(), MIB) == value


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@given(JSON, st.integers(0, 6), st.sampled_from([0, 1_000]))
def test_depth_is_counted_outside_strings(value: Any, limit: int, further: int) -> None:
    value = [value, *[[]] * further] if further else value
    text = json.dumps(value)
    if depth_of(value) <= limit:
        assert json_within(text, MIB, depth=limit) == value
    else:
        with pytest.raises(OutOfBoundsError, match="nested more than"):
            json_within(text, MIB, depth=limit)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 5000 + "]" * 5000, "nested more than 32 levels"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "nested more than 32 levels"),
        ("[" * 5000, "nested more than 32 levels"),
        ("[" + "0," * 1_000_001 + "0]", "more than 1000000 values"),
        ("x" * (4 * MIB + 1), "more than 4194304 bytes"),
        ("é" * (2 * MIB + 1), "more than 4194304 bytes"),
        ("NaN", "NaN is not a finite number"),
        ('{"a": -Infinity}', "-Infinity is not a finite number"),
        ("1e999", "1e999 is not a finite number"),
        ("9" * 10_000, "not JSON: Exceeds the limit"),
        ('"\\ud800"', "half of a surrogate pair"),
        ('"\ud800"', "half of a surrogate pair"),
        ("", "not JSON"),
        ("{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        ('{"a": 1}'.encode("utf-16"), "not JSON"),
        ('"unended', "not JSON"),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_a_value_out_of_bounds_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(OutOfBoundsError, match=message):
        json_within(text, 4 * MIB)


@given(st.binary(max_size=200))
def test_no_bytes_raise_another_error(data: bytes) -> None:
    with contextlib.suppress(OutOfBoundsError):
        json_within(data, 100)


def test_a_refusal_costs_memory_in_proportion_to_the_text() -> None:
    text = b"[" + b"[]," * (4 * MIB // 3 - 1) + b"[]]"
    tracemalloc.start()
    with pytest.raises(OutOfBoundsError, match="values"):
        json_within(text, 4 * MIB)
    assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    tracemalloc.stop()


@pytest.mark.parametrize("number", [1e200, -1e200, float("inf"), float("nan"), 10**400, -(10**400)])
def test_numbers_beyond_a_bound(number: float) -> None:
    assert not within(number, 1e12)


def test_numbers_within_a_bound() -> None:
    assert within(-1e12, 1e12)
    assert within(10**12, 1e12)


def test_text_for_a_message_is_short_and_printable() -> None:
    assert shortened("a\x1b[31m\nb", 20) == "a [31m b"
    assert shortened("x" * 50, 10) == "x" * 9 + "…"


@given(st.dictionaries(TEXT, JSON, max_size=6), st.sampled_from([None, 1]))
def test_the_members_of_an_object_are_told_apart(value: dict[str, Any], indent: int | None) -> None:
    text = json.dumps(value, indent=indent).encode()
    assert {name: json.loads(part) for name, part in json_members(text, MIB).items()} == value


@given(st.lists(JSON, max_size=6), st.sampled_from([None, 1]))
def test_the_elements_of_a_list_are_told_apart(value: list[Any], indent: int | None) -> None:
    text = json.dumps(value, indent=indent).encode()
    assert [json.loads(part) for part in json_elements(text, MIB)] == value


def test_a_deep_member_does_not_hide_the_others() -> None:
    text = b'{"a":' + b"[" * 9000 + b"]" * 9000 + b',"b":1}'
    assert json_members(text, MIB)["b"] == b"1"


@given(st.binary(max_size=60))
def test_no_bytes_make_parts_raise_another_error(data: bytes) -> None:
    for parts in (json_members, json_elements):
        for text in (data, b"{" + data, b'{"a":' + data, b"[" + data):
            with contextlib.suppress(OutOfBoundsError):
                parts(text, 100)


@given(JSON, st.integers(1, 6))
def test_a_parsed_value_has_the_same_maximum_depth(value: Any, limit: int) -> None:
    try:
        json_within(json.dumps(value), MIB, depth=limit)
    except OutOfBoundsError:
        with pytest.raises(OutOfBoundsError, match="nested"):
            nesting(value, limit, 1000)
    else:
        nesting(value, limit, 1000)


def test_a_parsed_value_may_be_of_a_derived_type() -> None:
    with pytest.raises(OutOfBoundsError, match="nested more than 2"):
        nesting(OrderedDict(a=OrderedDict(b=OrderedDict(c=1))), 2, 100)


def test_a_parsed_value_has_a_limited_count() -> None:
    with pytest.raises(OutOfBoundsError, match="more than 5 values"):
        nesting({"a": [1, 2, 3], "b": [4, 5]}, 4, 5)


def opened(value: Any) -> int:
    """Number of lists and objects in a value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, dict | list) + sum(map(opened, inner))


@given(JSON)
def test_lists_and_objects_are_counted_outside_strings(value: Any) -> None:
    raw, count = json.dumps(value).encode(), opened(value)
    assert containers_within(raw, count) is raw
    if count:
        with pytest.raises(OutOfBoundsError, match=f"more than {count - 1} lists and objects"):
            containers_within(raw, count - 1)


@given(JSON, st.integers(1, 9))
def test_values_are_counted_for_any_split_of_their_text(value: Any, size: int) -> None:
    """The text is scanned in slices, which may cut strings and escapes."""
    raw = json.dumps([value, 'a"[,{\\', {"\\": "\\\\"}]).encode()
    strings = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
    expected = re.sub(rb"[^\[\]{},]", b"", strings.sub(b"", raw))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "_SLICE", size)
        assert bounds._structure(raw) == expected


@pytest.mark.parametrize("value", ['{"\\ud800": 1}', '[["\\udfff"]]', '{"a": [{"b": "\\ud83d"}]}'])
def test_half_of_a_surrogate_pair_is_refused_at_any_depth(value: str) -> None:
    with pytest.raises(OutOfBoundsError, match="half of a surrogate pair"):
        json_within(value, MIB)
