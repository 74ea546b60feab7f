"""Layers of a pod template: which layer wins, and which key identifies an entry of a list."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_api.document import Json
from headway_api.pod_template import KEYED, merge

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
def test_merging_leaves_both_sides_unchanged(base: Json, layer: Json) -> None:
    before = copy.deepcopy((base, layer))
    merge(base, layer)
    assert (base, layer) == before


@given(layers)
def test_an_empty_layer_leaves_a_template_unchanged(base: Json) -> None:
    assert merge(base, {}) == base
    assert merge(base, base) == base


@given(layers, layers)
def test_applying_the_later_layer_twice_changes_nothing(base: Json, layer: Json) -> None:
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


def test_a_null_removes_a_field() -> None:
    assert merge({"readinessProbe": {"exec": {}}, "image": "a"}, {"readinessProbe": None}) == {"image": "a"}


@pytest.mark.parametrize("key", sorted(KEYED))
def test_named_entries_keep_their_place(key: str) -> None:
    a, b, c = (dict.fromkeys(KEYED[key], name) for name in "abc")
    more = {**b, "more": 1}
    assert merge({key: [a, b]}, {key: [c, more]}) == {key: [a, more, c]}


def test_a_port_over_udp_is_another_than_the_same_over_tcp() -> None:
    tcp, udp = {"containerPort": 53}, {"containerPort": 53, "protocol": "UDP"}
    assert merge({"ports": [tcp]}, {"ports": [udp]})["ports"] == [tcp, udp]
    named = {"name": "dns", "containerPort": 53, "protocol": "TCP"}
    assert merge({"ports": [tcp, udp]}, {"ports": [named]})["ports"] == [named, udp]


def test_a_list_whose_entries_share_a_key_is_replaced_whole() -> None:
    ports = [{"name": "http", "containerPort": 80}, {"name": "admin", "containerPort": 80}]
    assert merge({}, {"ports": ports})["ports"] == ports
    assert merge({"ports": [{"containerPort": 53}]}, {"ports": ports})["ports"] == ports


def test_a_preferred_spread_is_kept_beside_a_required_one() -> None:
    wish, demand = (
        {"topologyKey": "zone", "whenUnsatisfiable": how} for how in ("ScheduleAnyway", "DoNotSchedule")
    )
    key = "topologySpreadConstraints"
    assert merge({key: [wish]}, {key: [demand]})[key] == [wish, demand]


@pytest.mark.parametrize(
    "wrong",
    [["A=1"], [{"value": "1"}], "A=1", {"A": "1"}, [{"name": {}}], [{"name": None}], [{"name": ["A"]}]],
)
def test_a_template_of_another_shape_is_passed_on(wrong: Any) -> None:
    """The API server refuses such a template by name."""
    right = {"env": [{"name": "A", "value": "1"}]}
    assert merge(right, {"env": wrong}) == {"env": wrong}
    assert merge({"env": wrong}, right) == right
    assert merge({}, {"env": wrong}) == {"env": wrong}
