"""The order of training rows by the weights of their tasks."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway_api.exits import JobError
from headway_coordinator.dataset import Order
from headway_coordinator.mixing import Mixture, order_of, places
from headway_coordinator.preflight import checks

TASKS = ["refund"] * 6 + ["cancel"] * 3 + ["chat"]
PINNED = [9, 8, 6, 7, 9, 2, 5, 8, 7, 6, 9, 7, 8, 0, 1, 6, 6, 8, 7, 9]
weights = st.lists(st.floats(0.01, 100), min_size=1, max_size=6)


def rows_of(order: Order | Mixture, positions: range) -> list[int]:
    return [order.slot(position).row for position in positions]


@given(total=st.integers(6, 300), given=weights)
def test_each_task_gets_its_rounded_share_and_at_least_one(total: int, given: list[float]) -> None:
    found = places(total, given)
    assert sum(found) == total
    assert min(found) >= 1
    wanted = [total * weight / sum(given) for weight in given]
    if min(wanted) >= 1:
        assert all(abs(one - share) < 1 for one, share in zip(found, wanted, strict=True))


def test_the_order_without_weights_has_not_changed() -> None:
    assert order_of(8, None, {}, 7, True) == Order(8, 7)
    assert order_of(10, TASKS, {}, 7, False) == Order(10, 7, shuffle=False)


@pytest.mark.parametrize("shuffle", [False, True])
def test_tasks_come_in_proportion_to_their_weights(shuffle: bool) -> None:
    order = order_of(10, TASKS, {"refund": 1, "cancel": 3, "chat": 1}, 3, shuffle)
    for epoch in range(4):
        drawn = Counter(TASKS[row] for row in rows_of(order, range(epoch * 10, epoch * 10 + 10)))
        assert drawn == {"refund": 2, "cancel": 6, "chat": 2}


def test_task_uses_all_of_its_rows_before_one_repeats() -> None:
    order = order_of(10, TASKS, {"refund": 1, "cancel": 3, "chat": 1}, 3, True)
    drawn = rows_of(order, range(60))
    for task, size in (("refund", 6), ("cancel", 3), ("chat", 1)):
        own = [row for row in drawn if TASKS[row] == task]
        cycles = [own[i : i + size] for i in range(0, len(own) - size + 1, size)]
        assert all(len(set(cycle)) == size for cycle in cycles)


def test_zero_weight_excludes_a_task_and_no_weight_means_one() -> None:
    order = order_of(10, TASKS, {"chat": 0, "cancel": 1}, 0, True)
    drawn = Counter(TASKS[row] for row in rows_of(order, range(10)))
    assert drawn == {"refund": 5, "cancel": 5}


@given(seed=st.integers(0, 1000), position=st.integers(0, 200), shuffle=st.booleans())
def test_a_position_gives_every_caller_the_same_slot(seed: int, position: int, shuffle: bool) -> None:
    def slot() -> object:
        return order_of(10, TASKS, {"cancel": 2.5}, seed, shuffle).slot(position)

    assert slot() == slot()


def test_the_mixture_of_a_seed_never_changes() -> None:
    order = order_of(10, TASKS, {"cancel": 3}, 7, True)
    assert rows_of(order, range(20)) == PINNED
    assert {order.slot(position).epoch for position in range(10, 20)} == {1}
    other = order_of(10, TASKS, {"cancel": 3}, 8, True)
    assert rows_of(other, range(20)) != PINNED


def test_in_file_order_the_tasks_are_evenly_spread() -> None:
    order = order_of(10, TASKS, {"refund": 1, "cancel": 3, "chat": 1}, 0, False)
    own = [i for i, row in enumerate(rows_of(order, range(10))) if TASKS[row] == "cancel"]
    assert max(b - a for a, b in pairwise(own)) <= 3
    assert [row for row in rows_of(order, range(10)) if TASKS[row] == "cancel"] == [6, 7, 8, 6, 7, 8]


def test_shares_are_reported_and_unknown_tasks_are_refused() -> None:
    assert checks.task_weights(TASKS, {"cancel": 2}) == "shares: cancel 50.0%, chat 25.0%, refund 25.0%"
    with pytest.raises(JobError, match="no training row has the task typo; tasks are cancel, chat, refund"):
        checks.task_weights(TASKS, {"typo": 1})
    with pytest.raises(JobError, match="every task has the weight 0"):
        checks.task_weights(["a"], {"a": 0})
