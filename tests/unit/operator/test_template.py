"""Merging pod templates: which layer wins, and what no layer can change."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headway_operator.plan.template import merge

Json = dict[str, Any]
scalars = st.one_of(st.integers(), st.text(max_size=3), st.booleans())
names = st.sampled_from(["a", "b", "c"])
entries = st.lists(
    st.fixed_dictionaries({"name": names}, optional={"value": scalars}),
    max_size=3,
    unique_by=lambda e: e["name"],
)
layers = st.fixed_dictionaries(
    {},
    optional={
        "nodeSelector": st.dictionaries(names, scalars, max_size=3),
        "containers": entries,
        "env": entries,
        "schedulerName": scalars,
    },
)


@given(layers, layers)
def test_merging_changes_neither_side(base: Json, layer: Json) -> None:
    before = copy.deepcopy((base, layer))
    merge(base, layer)
    assert (base, layer) == before


@given(layers)
def test_nothing_over_a_template_is_the_template(base: Json) -> None:
    assert merge(base, {}) == base
    assert merge(base, base) == base


@given(layers, layers)
def test_the_later_layer_wins_twice_as_once(base: Json, layer: Json) -> None:
    once = merge(base, layer)
    assert merge(once, layer) == once


def test_containers_are_merged_by_name() -> None:
    base = {"containers": [{"name": "main", "image": "a", "command": ["run"]}]}
    layer = {"containers": [{"name": "main", "image": "b"}, {"name": "side", "image": "c"}]}
    assert merge(base, layer)["containers"] == [
        {"name": "main", "image": "b", "command": ["run"]},
        {"name": "side", "image": "c"},
    ]


def test_a_variable_is_replaced_whole() -> None:
    base = {"env": [{"name": "A", "value": "1"}]}
    layer = {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}
    assert merge(base, layer)["env"] == layer["env"]


def test_tolerations_add_up() -> None:
    assert len(merge({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]})["tolerations"]) == 2


def test_null_removes() -> None:
    assert merge({"readinessProbe": {"exec": {}}, "image": "a"}, {"readinessProbe": None}) == {"image": "a"}
