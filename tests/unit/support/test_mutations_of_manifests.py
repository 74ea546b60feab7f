"""The fuzzer of custom resources changes each block, and each field that accepts any content."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest
from mutations import FREE_FORM, mutated

from headway_api.bounds import OutOfBoundsError, nesting

VALID: dict[str, Any] = {
    "metadata": {"name": "x"},
    "spec": {
        "environment": {"image": "i", "config": {"a": 1}, "contract": {"tools": []}},
        "judges": [{"name": "strict", "endpoint": {"url": "https://j", "model": "m"}}],
        "suites": [{"name": "s", "args": {"level": 1}, "sandbox": {"podTemplate": {"spec": {}}}}],
    },
}
TEXTS = [mutated(random.Random(seed), copy.deepcopy(VALID)) for seed in range(400)]


def at(body: Any, path: tuple[str | int, ...]) -> Any:
    """The value at a path, or None if there is none."""
    for key in path:
        try:
            body = body[key]
        except (KeyError, IndexError, TypeError):
            return None
    return body


def is_deep(value: Any) -> bool:
    try:
        nesting(value, 16, 200_000)
    except OutOfBoundsError:
        return True
    return False


@pytest.mark.parametrize(
    "path",
    [
        ("environment", "config"),
        ("environment", "contract"),
        ("suites", 0, "args"),
        ("suites", 0, "sandbox", "podTemplate"),
        ("judges", 0, "endpoint"),
        ("judges",),
        ("suites",),
    ],
)
def test_a_field_is_nested_crowded_and_changed(path: tuple[str | int, ...]) -> None:
    nested = crowded = changed = False
    for text in TEXTS:
        try:
            value = at(json.loads(text)["spec"], path)
        except RecursionError:  # deeper than Python's recursion limit
            continue
        nested |= is_deep(value)
        crowded |= isinstance(value, dict) and len(json.dumps(value)) > 600
        changed |= value != at(VALID["spec"], path)
    assert changed
    if path[-1] in FREE_FORM:
        assert nested
        assert crowded
